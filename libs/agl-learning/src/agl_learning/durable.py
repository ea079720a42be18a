"""Collections that a killed run goes on with: rollouts under durable keys, noted in the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.types import RolloutMode
from agl_learning.tasks import digest

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl_learning.collect import Collected
    from agl_learning.journal import Journal
    from agl_learning.session import Session


@dataclass(frozen=True)
class Request:
    """Tasks that are to run, each some times, under a durable key."""

    mode: RolloutMode
    tasks: list[Any]
    copies: int
    key: str
    round: int
    """How often the same was collected before and given up; each draws anew."""
    written: dict[str, Any]
    """What its entry in the journal says of tasks and copies."""


def find_request(
    session: "Session",
    journal: "Journal",
    version: int,
    mode: RolloutMode,
    tasks: list[Any],
    copies: int,
) -> Request:
    """A request for these tasks, or the one that was cut off, to go on with.

    Args:
        session: Of the run.
        journal: Of the run.
        version: Number of the one that answers.
        mode: Of the rollouts.
        tasks: Their inputs.
        copies: How often each of them runs.

    Raises:
        ConfigError: That one had other tasks or copies; its rollouts would count as theirs.
    """
    rounds = len(journal.all("given up", key=f"{mode}-{version}"))
    key = f"{session.algorithm}/{session.run_id}/{mode}-{version}/{rounds}"
    request = Request(mode, tasks, copies, key, rounds, {"tasks": digest(tasks), "copies": copies})
    begun = journal.last("collecting", key=key)
    for what, now in request.written.items():
        if begun is not None and begun.get(what) != now:
            kind = "validation" if mode == "val" else "training"
            raise ConfigError(
                f"{session.algorithm}: the run in {str(session.folder)!r} stopped amid {kind} "
                f"rollouts of version {version} with other {what}: {begun.get(what)!r} then, "
                f"{now!r} now. Continue it with what it had, or give another run_dir"
            )
    return request


async def run_request(
    algorithm: "Algorithm",
    session: "Session",
    journal: "Journal",
    request: Request,
    version: int,
    resources: Mapping[str, str],
) -> "Collected":
    """Run its tasks, as far as an earlier start of the run has not.

    Args:
        algorithm: Knows whether the budget is spent.
        session: Of the run.
        journal: Of the run.
        request: What is to run.
        version: Number of the one that answers.
        resources: Ids per mode.
    """
    mode, tasks, key = request.mode, request.tasks, request.key
    earlier = len(journal.all("collecting", key=key))
    journal.append("collecting", key=key, **request.written)
    metadata = session.metadata(version + (mode == "train"), version)
    metadata["round"] = request.round
    collect = session.collector.collect
    collected = last = await collect(
        tasks, request.copies, mode, resources[mode], metadata, key=key
    )
    # Where the run had ended in the middle of this, rollouts were cut off, or met the address
    # of a gateway that was gone: those are drawn once more.
    for again in range(1, earlier + 1):
        groups = [one.group for one in last.ended if one.rollout.status != "succeeded"]
        if not groups or algorithm.is_budget_spent():
            break
        inputs = [tasks[group] for group in groups]
        retry = f"{key}/again-{again}"
        last = await collect(inputs, 1, mode, resources[mode], metadata, key=retry)
        last.ended = [replace(one, group=groups[one.group]) for one in last.ended]
        collected.ledger.merge(last.ledger)
        seconds = collected.seconds + last.seconds
        collected = replace(collected, ended=collected.ended + last.ended, seconds=seconds)
    return collected
