"""Resources, runners and settings of a store."""

import math
import time
from collections import Counter

from starlette.requests import Request

from agl.runs.differences import flat
from agl_ui.pages.page import Page, whole_number
from agl_ui.places import Places

PAGE = 50
SILENT_SECONDS = 60.0
"""A runner gives a sign of life every few seconds; of one that is silent for longer, what it last
said of itself is old. By the clock of this page's server, as no store says its own."""


async def resources(request: Request, places: Places) -> Page:
    """Snapshots, the newest first."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    size = min(whole_number(request, "size", PAGE) or PAGE, 500)
    found = await place.store.query_resources(sort_order="desc", limit=size)
    values = {
        "title": "Resources",
        "total": found.total,
        "snapshots": [
            (
                one,
                {name: each.model_dump(exclude_none=True) for name, each in one.resources.items()},
            )
            for one in found
        ],
    }
    return Page("resources.html", values, place, "resources", state=state)


async def runners(request: Request, places: Places) -> Page:
    """Workers, the last that were heard of first."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    found = await place.store.query_workers(
        sort_by="last_heartbeat_time", sort_order="desc", limit=PAGE
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
        "total": found.total,
        "counts": counts,
        "until": until,  # in so many seconds, one more may be silent
    }
    return Page("runners.html", values, place, "runners", state=state)


async def settings(request: Request, places: Places) -> Page:
    """Options and versions of the newest runs."""
    place = places.get(request.path_params["key"])
    runs = [(run, flat(run.config)) for run in (await place.runs())[:5]]
    return Page("settings.html", {"title": "Settings", "runs": runs}, place, "settings")
