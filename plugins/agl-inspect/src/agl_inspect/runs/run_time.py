"""How long the starts of a run took, those that were killed included."""

from collections.abc import Iterable, Mapping
from typing import Any

from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import AttemptedRollout, Rollout
from agl_runs.records import Run


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
    is_killed = any(one.end_time is None for one in run.generations[: -1 if is_running else None])
    signs = await _last_signs(store, run.run_id) if is_killed and store is not None else {}
    for n, start in enumerate(run.generations):
        is_last = n == len(run.generations) - 1
        if start.end_time is not None:
            total, is_known = total + start.end_time - start.start_time, True
        elif not (is_last and is_running):
            end = None if is_last else run.generations[n + 1].start_time
            seen = start.start_time + took.get(start.number, 0.0)
            seen = max(seen, signs.get(start.number, 0.0))
            seen = seen if end is None else min(seen, end)
            total, may_be_more = total + seen - start.start_time, True
    is_known = is_known or total > 0
    return (total if is_known else None), is_known and may_be_more


async def _last_signs(store: LightningStore, run_id: str) -> dict[Any, float]:
    """Start -> when one of its rollouts was last heard of."""
    signs: dict[Any, float] = {}
    async for one in each_record(store.query_rollouts, run=run_id):
        about = one.metadata or {}
        if about.get("run") == run_id:  # a store of 0.3 has no filter
            number = about.get("generation")
            signs[number] = max(signs.get(number, 0.0), _heard_of(one))
    return signs


def _heard_of(rollout: Rollout) -> float:
    times: list[float | None] = [rollout.start_time]
    if rollout.status != "cancelled":  # which the next start did
        times.append(rollout.end_time)
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is not None:
        times += [attempt.start_time, attempt.last_heartbeat_time]
    return max(time for time in times if time is not None)
