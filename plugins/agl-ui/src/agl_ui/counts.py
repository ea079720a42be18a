"""How many rollouts a store has, and what those came to of a run that has no curve."""

import asyncio
from dataclasses import dataclass
from typing import Final

from agl.types import RolloutStatus
from agl_ui.data_sources import DataSource
from agl_views.tables.rollout_table import Wanted, listed

STATUSES: Final[tuple[RolloutStatus, ...]] = (
    "queuing",
    "requeuing",
    "preparing",
    "running",
    "succeeded",
    "failed",
    "cancelled",
)
MOST_REWARDS = 1_000
"""Rollouts, the newest that succeeded, over whose rewards a mean is."""


@dataclass(frozen=True)
class Mean:
    """The mean reward of rollouts that succeeded."""

    reward: float
    number: int
    """Rollouts with a reward, over which it is."""
    is_whole: bool
    """Whether it is over all of them; else over the newest."""


async def counts_of(source: DataSource) -> dict[str, int]:
    """Status -> how many rollouts a store has."""
    found = await asyncio.gather(*(_count(source, one) for one in STATUSES))
    return dict(zip(STATUSES, found, strict=True))


async def _count(source: DataSource, status: RolloutStatus) -> int:
    return (await source.store.query_rollouts(status_in=[status], limit=1)).total


async def mean_reward(source: DataSource, run_id: str, is_only_run: bool) -> Mean | None:
    """What a run without a curve came to so far, as a baseline does; None without any reward.

    Args:
        source: The store of the run.
        run_id: Of the run.
        is_only_run: Whether all rollouts of the store are the run's.
    """
    num_succeeded = await _count(source, "succeeded")
    key = f"mean of {run_id}"
    known: tuple[int, Mean | None] | None = source.memory.get(key)
    if known is None or known[0] != num_succeeded:
        wanted = Wanted(["succeeded"], run=None if is_only_run else run_id, most=MOST_REWARDS)
        found = await listed(source.store, wanted)
        rewards = [one.reward for one in found.rollouts if one.reward is not None]
        of = (len(rewards), found.total == len(found.rollouts))
        known = num_succeeded, Mean(sum(rewards) / len(rewards), *of) if rewards else None
        source.memory[key] = known
    return known[1]
