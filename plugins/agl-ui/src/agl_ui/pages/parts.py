"""Resources, runners and settings of a store.

Their pages go by number: the contract has no keys for these records, and the newest are what is
looked at.
"""

import math
import time
from collections import Counter
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl_runs.differences import flat
from agl_ui.data_sources import DataSource
from agl_ui.pages.page import Page, whole_number

PAGE, RUNS = 50, 5
"""Records, and runs with all their options, on one page."""
SILENT_SECONDS = 60.0
"""A runner gives a sign of life every few seconds; of one that is silent for longer, what it last
said of itself is old. By the clock of this page's server, as no store says its own."""


async def resources(request: Request, source: DataSource) -> Page:
    """Snapshots, the newest first."""
    state = await source.state()
    first = whole_number(request, "from", 0) or 0
    found = await source.store.query_resources(sort_order="desc", limit=PAGE, offset=first)
    values = {
        "title": "Resources",
        "part": _part(first, PAGE, len(found), found.total),
        "snapshots": [
            (
                one,
                {name: each.model_dump(exclude_none=True) for name, each in one.resources.items()},
            )
            for one in found
        ],
    }
    return Page("resources.html", values, source, "resources", state=state)


async def runners(request: Request, source: DataSource) -> Page:
    """Workers, the last that were heard of first."""
    state = await source.state()
    first = whole_number(request, "from", 0) or 0
    found = await source.store.query_workers(
        sort_by="last_heartbeat_time", sort_order="desc", limit=PAGE, offset=first
    )
    since = time.time() - SILENT_SECONDS
    heard = [one.last_heartbeat_time or 0.0 for one in found]
    workers = [
        (one, "silent" if at < since else one.status) for one, at in zip(found, heard, strict=True)
    ]
    until = min((math.ceil(at - since) for at in heard if at >= since), default=None)
    counts = Counter(status for _, status in workers)
    values = {
        "title": "Runners",
        "workers": workers,
        "part": _part(first, PAGE, len(found), found.total),
        "counts": counts,
        "until": until,  # in so many seconds, one more may be silent
    }
    return Page("runners.html", values, source, "runners", state=state)


async def settings(request: Request, source: DataSource) -> Page:
    """Options and versions of the newest runs."""
    first, runs = whole_number(request, "from", 0) or 0, await source.runs()
    values = {
        "title": "Settings",
        "part": _part(first, RUNS, len(runs[first : first + RUNS]), len(runs)),
        "runs": [(run, flat(run.config)) for run in runs[first : first + RUNS]],
    }
    return Page("settings.html", values, source, "settings")


@dataclass(frozen=True)
class Part:
    """Which records are shown."""

    first: int
    """From 0."""
    last: int
    """The one behind them."""
    total: int
    before: int | None
    """Where the page before begins."""
    after: int | None
    """Where the next one begins."""


def _part(first: int, size: int, number: int, total: int) -> Part:
    """Which are shown of all.

    Raises:
        HTTPException: The address asks for what is behind the last one.
    """
    if first and first >= total:
        raise HTTPException(400, f"from={first}: there are {total}, and the first one is 0")
    after = first + size if first + size < total else None
    return Part(first, first + number, total, max(0, first - size) if first else None, after)
