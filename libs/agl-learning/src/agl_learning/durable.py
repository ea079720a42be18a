"""Collections that a killed run goes on with: rollouts under durable keys, noted in the journal."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl.runs.description import options_of
from agl.types import RolloutMode
from agl_learning.tasks import digest

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl_learning.collected import Collected
    from agl_learning.journal import Journal
    from agl_learning.session import Session

logger = logging.getLogger("agl.learning")

_SHAPES_NOTHING = {
    *("steps", "target_reward", "max_idle_steps", "eval_every", "eval_copies", "eval_temperature"),
    *("run_dir", "resume_from", "checkpoint_every", "show_progress", "rollout_timeout_seconds"),
    *("unresponsive_seconds", "device", "torch_threads", "max_batch_size"),
}
"""Options that may change in a run without a change in what its steps train."""


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
    session: "Session", journal: "Journal", mode: RolloutMode, tasks: list[Any], copies: int
) -> Request:
    """A request for these tasks after the steps done, or the one that was cut off, to go on with.

    Args:
        session: Of the run.
        journal: Of the run.
        mode: Of the rollouts.
        tasks: Their inputs.
        copies: How often each of them runs.

    Raises:
        ConfigError: That one had other tasks or copies; its rollouts would count as theirs.
    """
    rounds = len(journal.all("given up", mode=mode, after=session.steps_done))
    key = f"{session.algorithm}/{session.run_id}/{mode}-{session.steps_done}/{rounds}"
    request = Request(mode, tasks, copies, key, rounds, {"tasks": digest(tasks), "copies": copies})
    begun = journal.last("collecting", key=key)
    for what, now in request.written.items():
        if begun is not None and begun.get(what) != now:
            kind = "validation" if mode == "val" else "training"
            raise ConfigError(
                f"{session.algorithm}: the run in {str(session.folder)!r} stopped amid {kind} "
                f"rollouts after step {session.steps_done} with other {what}: {begun.get(what)!r} "
                f"then, {now!r} now. Continue it with what it had, or give another run_dir"
            )
    return request


async def run_request(
    session: "Session",
    journal: "Journal",
    request: Request,
    version: int,
    resources: Mapping[str, str],
    why_silent: Callable[[], str | None],
    is_budget_spent: Callable[[], bool],
) -> "Collected":
    """Run its tasks, as far as no earlier start of the run has.

    Args:
        session: Of the run.
        journal: Of the run.
        request: What is to run.
        version: Number of the one that answers.
        resources: Ids per mode.
        why_silent: Says why the version answers no more.
        is_budget_spent: Whether every further model call is refused.

    Raises:
        StoppedError: The run was asked to stop, or its budget was spent, before all were done.
        AlgorithmError: The version answers no more; or not one was done, as servers or the network
            failed their model calls.
    """
    mode, key = request.mode, request.key
    done = journal.last("collected", key=key)
    if done is not None:
        collected = await session.collector.read(done["rollouts"], done["lost"])
        collected.seconds = done["seconds"]
        return collected
    after = session.steps_done
    journal.append("collecting", key=key, mode=mode, after=after, **request.written)
    collected = await session.collector.collect(
        request.tasks,
        request.copies,
        mode,
        resources[mode],
        {**session.metadata(after + (mode == "train"), version), "round": request.round},
        key=key,
    )
    what = f"{mode} rollouts after step {after}"
    _check_done(collected, what, is_budget_spent())
    if (why := why_silent()) is not None:
        raise AlgorithmError(f"{why}. Go on with the run: {what} that failed run again")
    journal.append(
        "collected",
        key=key,
        rollouts=[(one.group, one.rollout.rollout_id) for one in collected.ended],
        lost=[one.rollout.rollout_id for one in collected.lost],
        seconds=collected.seconds,
    )
    return collected


def _check_done(collected: "Collected", what: str, is_budget_spent: bool) -> None:
    """Refuse to go on with rollouts that failed as others of the run will.

    They are not noted as collected, so that those that failed run again when the run goes on.
    """
    why = [
        one.cut_off or one.failed_call or (one.unusable and one.infrastructure)
        for one in collected.ended
    ]
    if is_budget_spent and (collected.num_failed or any(why)):
        raise StoppedError("its budget was spent")
    if why and all(why):
        raise AlgorithmError(
            f"servers or the network failed model calls of all {len(why)} {what}, the first "
            f"with: {why[0]}. See that gateway and model answer, and go on: these run again"
        )


def note_trained(
    journal: "Journal",
    step: int,
    key: str,
    weights: str | None,
    metrics: Mapping[str, Any],
    rows: Sequence[str],
) -> None:
    """Note that a step was trained; once more, it must have given the same weights.

    Args:
        journal: Of the run.
        step: Its number.
        key: Of the request that it learned from.
        weights: What tells the weights that came out from others; None where nobody looked.
        metrics: Of the step.
        rows: Digests of the rows that were trained, in their order.
    """
    before = journal.last("trained", key=key)
    if before is not None and before["weights"] != weights:
        logger.warning(
            "step %d, trained again with the same rollouts, gave other weights (%s) than in an "
            "earlier start of the run (%s): another machine, version or number of threads computes "
            "otherwise",
            step,
            weights,
            before["weights"],
        )
    journal.append("trained", step=step, key=key, weights=weights, metrics=metrics, rows=[*rows])


def give_up(journal: "Journal", mode: RolloutMode, after: int, **values: Any) -> None:
    """Have what was collected after so many steps drawn anew the next time.

    Args:
        journal: Of the run.
        mode: Of its rollouts.
        after: How many steps.
        values: For the entry.
    """
    journal.append("given up", mode=mode, after=after, **values)


def options_that_shape(training: "Algorithm") -> dict[str, Any]:
    """The options of an algorithm on which depends what its steps train; as JSON gives them."""
    given = options_of(training)
    return {name: value for name, value in given.items() if name not in _SHAPES_NOTHING}


def begin(journal: "Journal", training: "Algorithm", generation: int, step: int) -> None:
    """Note with which options a start goes on; where they have changed, nothing is trained again.

    Args:
        journal: Of the run.
        training: The algorithm, whose options are compared.
        generation: Which start this is.
        step: After which it goes on.
    """
    now = options_that_shape(training)
    before = journal.last("begun")
    changed = [name for name in now if before and before["options"].get(name) != now[name]]
    if before and changed:
        was = before["options"]
        for mode, after in {(each["mode"], each["after"]) for each in journal.all("collecting")}:
            if after >= step:
                give_up(journal, mode, after)
        logger.warning(
            "the run goes on after step %d with other options: %s. What came after that step is "
            "drawn anew",
            step,
            ", ".join(f"{name} is {now[name]!r}, was {was.get(name)!r}" for name in changed),
        )
    journal.append("begun", generation=generation, step=step, options=now)
