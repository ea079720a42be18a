"""How long the starts of a run took, those that were killed included."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Rollout
from agl_runs.records import Run

_LAST: Final = 100
"""Rollouts that are looked at for the last sign of life of a start."""


async def seconds_of(
    run: Run,
    lines: Iterable[Mapping[str, Any]],
    is_running: bool,
    store: LightningStore | None,
) -> tuple[float | None, bool]:
    """Seconds of all starts that have ended; None where nobody knows.

    Args:
        run: Its record.
        lines: Of its metrics.
        is_running: Whether its last start is under way.
        store: Of the run; None leaves out what only rollouts say.

    Returns:
        Them, and whether they may be more: nobody saw the end of a start that was killed, which
        counts to the last that is known of it.
    """
    total, is_known, may_be_more = 0.0, False, False
    took: dict[Any, float] = {}
    for line in lines:
        for name in ("time/step", "val/time/rollouts"):
            if isinstance(value := line.get(name), int | float):
                number = line.get("generation")
                took[number] = took.get(number, 0.0) + value
    for n, start in enumerate(run.generations):
        is_last = n == len(run.generations) - 1
        if start.end_time is not None:
            total, is_known = total + start.end_time - start.start_time, True
        elif not (is_last and is_running):
            end = None if is_last else run.generations[n + 1].start_time
            seen = start.start_time + took.get(start.number, 0.0)
            if store is not None:
                seen = max(seen, await _last_sign(store, run.run_id, start.number, end))
            seen = seen if end is None else min(seen, end)
            total, may_be_more = total + seen - start.start_time, True
    is_known = is_known or total > 0
    return (total if is_known else None), is_known and may_be_more


async def _last_sign(
    store: LightningStore, run_id: str, generation: int, before: float | None
) -> float:
    """When a rollout of a start was last heard of; 0 where there is none."""
    low, high = 0, (await store.query_rollouts(limit=1)).total
    if before is not None:
        end = high
        while low < end:  # rollouts come in the order in which they were queued
            middle = (low + end) // 2
            found = await store.query_rollouts(limit=1, offset=middle)
            if found and found[0].start_time < before:
                low = middle + 1
            else:
                end = middle
        high = low
    if high == 0:
        return 0.0
    first = max(0, high - _LAST)
    last = await store.query_rollouts(limit=high - first, offset=first)
    wanted = {"run": run_id, "generation": generation}
    mine = [one for one in last if wanted.items() <= (one.metadata or {}).items()]
    return max(map(_heard_of, mine), default=0.0)


def _heard_of(rollout: Rollout) -> float:
    times: list[float | None] = [rollout.start_time]
    if rollout.status != "cancelled":  # which the next start did
        times.append(rollout.end_time)
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is not None:
        times += [attempt.start_time, attempt.last_heartbeat_time]
    return max(time for time in times if time is not None)
