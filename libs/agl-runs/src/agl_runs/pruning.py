"""Deleting rollouts that ended long ago, in pieces so small that nobody waits for one."""

import asyncio
import time
from collections import Counter

from agl.store import rules
from agl.store.base import LightningStore
from agl_runs.folders import shown_status
from agl_runs.records import canary_run
from agl_runs.store import query_runs

_PAGE = 2000
_PIECE_SECONDS = 0.05
"""So long a piece should take; the writer waits for as long before the next one."""


async def find_old(store: LightningStore, before: float) -> tuple[list[str], int]:
    """Rollouts that ended before an instant: ids to delete, and how many running runs still use.

    A run uses its rollouts, those of its canaries, and those of the run that it was derived from.
    """
    runs = [run for run in await query_runs(store) if shown_status(run) == "running"]
    used = {name for run in runs for name in (run.run_id, canary_run(run.run_id))}
    used |= {run.derived_from.run_id for run in runs if run.derived_from is not None}
    old: list[str] = []
    num_used, after, ended = 0, None, sorted(rules.ENDED)
    while page := await store.query_rollouts(status_in=ended, after=after, limit=_PAGE):
        for one in page:
            if one.end_time is not None and one.end_time < before:
                is_used = (one.metadata or {}).get("run") in used
                num_used += is_used
                old += [] if is_used else [one.rollout_id]
        after = page[-1].rollout_id
        if page[-1].start_time >= before:  # and so all behind it
            break
    return old, num_used


async def delete_rollouts(
    store: LightningStore, rollout_ids: list[str], *, only_count: bool = False
) -> Counter[str]:
    """Delete rollouts in pieces, or only count; see ``LightningStore.delete_rollouts``.

    The count knows no resources: what several pieces use is seen only when they are gone.
    """
    counts = Counter[str]()
    begin, size = 0, 500 if only_count else 10
    while piece := rollout_ids[begin : begin + size]:
        begin, start = begin + size, time.monotonic()
        counts.update(await store.delete_rollouts(piece, only_count=only_count))
        if not only_count:
            took = time.monotonic() - start
            size = max(1, min(2 * size, int(size * _PIECE_SECONDS / took)))
            await asyncio.sleep(took)
    if only_count:
        del counts["resources"]
    return counts
