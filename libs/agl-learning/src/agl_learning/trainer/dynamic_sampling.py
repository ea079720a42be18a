"""Dynamic sampling: in the place of groups that teach nothing, others are drawn, up to a limit.

A group teaches nothing where none of its calls would get an advantage: all rewards are equal, say,
or all rollouts failed. Source: DAPO (arXiv:2503.14476). Where we differ: groups are never thrown
away; those that taught nothing are in the accounts as all are, so that the step has more rollouts.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from agl.errors import ConfigError
from agl_learning.advantages.weighing import ACROSS_TASKS, WeighingOptions
from agl_learning.collect.results import Collected
from agl_records.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agl_learning.advantages.weighing import Weighed

    Weigh = Callable[[Collected], list[Weighed]]
    """How the algorithm makes advantages; called in a thread."""


def check_refills(owner: str, options: WeighingOptions, max_refills: int) -> None:
    """Refuse to refill groups where there are none.

    Raises:
        ConfigError: It names the option and the estimator.
    """
    if max_refills and options.estimator in ACROSS_TASKS:
        raise ConfigError(
            f"{owner}: max_refills is {max_refills}, and the estimator {options.estimator!r} "
            "compares no groups that could be refilled. Leave it out"
        )


def idle_groups(collected: Collected, weigh: "Weigh") -> set[int]:
    """The groups of which no call would get an advantage; nothing is booked."""
    groups = {one.rollout.rollout_id: one.group for one in collected.ended}
    spare = Ledger()
    spare.merge(collected.ledger)
    taught = weigh(replace(collected, ledger=spare))
    return {*groups.values()} - {groups[one.row.rollout_id] for one in taught}


async def collect_refilled(
    collect: "Callable[[int, int, int], Awaitable[Collected | None]]",
    weigh: "Weigh",
    groups: int,
    max_refills: int,
) -> Collected:
    """All that a step is made of.

    Args:
        collect: Gives what came of so many tasks, as the part of this number, its groups counted
            from the third; None where what was collected before has been given up.
        weigh: What says which groups would teach something.
        groups: So many are to teach something.
        max_refills: How often others are drawn, at most.
    """
    whole: Collected | None = None
    part = begun = 0
    while whole is None or part <= max_refills:
        number = groups
        if whole is not None:
            number += len(await asyncio.to_thread(idle_groups, whole, weigh)) - begun
            if number <= 0:
                return whole
        found = await collect(number, part, begun)
        if found is None:
            whole, part, begun = None, 0, 0
            continue
        whole = found if whole is None else _joined(whole, found)
        part, begun = part + 1, begun + number
    return whole


def _joined(one: Collected, other: Collected) -> Collected:
    one.ledger.merge(other.ledger)
    return Collected(
        [*one.ended, *other.ended],
        one.ledger,
        one.seconds + other.seconds,
        [*one.lost, *other.lost],
        [*one.others, *other.others],
        {name: one.judged[name] + value for name, value in other.judged.items()},
    )
