"""Collections that a killed run goes on with: rollouts under durable keys, noted in the journal."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, StoppedError
from agl.types import RolloutMode
from agl_learning.collect.task_order import digest
from agl_runs.differences import options_that_shape

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl_learning.collect.results import Collected
    from agl_learning.resume.session import Session
    from agl_learning.run.generations import Generation
    from agl_learning.run.journal import Entry, Journal

logger = logging.getLogger("agl.learning")


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
    part: int = 0
    """Of what is collected after so many steps; beyond the first one, others are drawn."""
    first_group: int = 0
    """That of its first task."""
    after: int = 0
    """So many steps come before the one, or the evaluation, that it is for."""


def find_request(
    session: "Session",
    journal: "Journal",
    mode: RolloutMode,
    tasks: list[Any],
    copies: int,
    part: int = 0,
    first_group: int = 0,
    ahead: int = 0,
) -> Request:
    """A request for these tasks after the steps done, or the one that was cut off, to go on with.

    Where that one had other tasks or copies, its rollouts would count as theirs: it is given up.

    Args:
        session: Of the run.
        journal: Of the run.
        mode: Of the rollouts.
        tasks: Their inputs.
        copies: How often each of them runs.
        part: Of what is collected after these steps.
        first_group: The group of the first task.
        ahead: For a later step: so many that are not done yet come before it.
    """
    places = (part, first_group, session.steps_done + ahead)
    request = _request(session, journal, mode, tasks, copies, *places)
    begun = journal.last("collecting", key=request.key)
    for what, now in request.written.items():
        if begun is not None and begun.get(what) != now:
            _give_up_from(
                journal,
                mode,
                request.after,
                f"had other {what}: {begun.get(what)!r}, not {now!r}",
            )
            return _request(session, journal, mode, tasks, copies, *places)
    return request


def _request(
    session: "Session",
    journal: "Journal",
    mode: RolloutMode,
    tasks: list[Any],
    copies: int,
    part: int,
    first_group: int,
    after: int,
) -> Request:
    rounds = round_of(journal, mode, after)
    key = _key_of_part(key_of(session, journal, mode, after), part)
    written = {"tasks": digest(tasks), "copies": copies}
    return Request(mode, tasks, copies, key, rounds, written, part, first_group, after)


def _key_of_part(key: str, part: int) -> str:
    return f"{key}/refill-{part}" if part else key


def collected_under(journal: "Journal", key: str) -> "list[Entry]":
    """What the journal has of all parts that were collected under a key, in order."""
    found: list[Entry] = []
    while done := journal.last("collected", key=_key_of_part(key, len(found))):
        found.append(done)
    return found


def round_of(journal: "Journal", mode: RolloutMode, after: int) -> int:
    """How often what was collected after so many steps was given up."""
    return len(journal.all("given up", mode=mode, after=after))


def key_of(
    session: "Session", journal: "Journal", mode: RolloutMode, after: int | None = None
) -> str:
    """That under which the rollouts after so many steps, by default those done, stand, or will."""
    after = session.steps_done if after is None else after
    number = round_of(journal, mode, after)
    return f"{session.algorithm}/{session.run_id}/{mode}-{after}/{number}"


async def run_request(
    session: "Session",
    journal: "Journal",
    request: Request,
    version: int,
    resources: Mapping[str, str],
    why_silent: Callable[[], Awaitable[str | None]],
    is_budget_spent: Callable[[], bool],
) -> "Collected":
    """Run its tasks, as far as no earlier start of the run has.

    What one has collected, and the store does not have any more, is given up and drawn anew.

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
    mode, after = request.mode, request.after
    done = journal.last("collected", key=request.key)
    if done is not None:
        collected, gone = await _read(session, done)
        if collected is not None:
            return collected
        _give_up_from(journal, mode, after, gone)
        places = (request.part, request.first_group, after)
        request = _request(session, journal, mode, request.tasks, request.copies, *places)
    key = request.key
    journal.append("collecting", key=key, mode=mode, after=after, **request.written)
    collected = await collect_request(session, request, version, resources)
    what = f"{mode} rollouts after step {after}"
    _check_done(collected, what, is_budget_spent())
    if (why := await why_silent()) is not None:
        raise AlgorithmError(f"{why}. Go on with the run: {what} that failed run again")
    journal.append(
        "collected",
        key=key,
        rollouts=[(one.group, one.rollout.rollout_id) for one in collected.ended],
        lost=[one.rollout.rollout_id for one in collected.lost],
        seconds=collected.seconds,
        **_size(collected),
    )
    return collected


async def collect_request(
    session: "Session",
    request: Request,
    version: int,
    resources: Mapping[str, str],
    *,
    at_once: bool = False,
) -> "Collected":
    """Run its tasks, or take what there is of them; the journal hears nothing of it.

    Args:
        session: Of the run.
        request: What is to run.
        version: Number of the one that answers.
        resources: Ids per mode.
        at_once: Cancel what has not ended.
    """
    step = request.after + (request.mode == "train")
    return await session.collector.collect(
        request.tasks,
        request.copies,
        request.mode,
        resources[request.mode],
        {**session.metadata(step, version), "round": request.round},
        key=request.key,
        first_group=request.first_group,
        at_once=at_once,
    )


async def _read(session: "Session", done: "Entry") -> "tuple[Collected | None, str]":
    """What was collected, out of the store; or None, and what the store does not have of it."""
    rollout_ids = [rollout_id for _, rollout_id in done["rollouts"]] + done["lost"]
    missing = await session.collector.missing(rollout_ids)
    if missing:
        few = ", ".join(missing[:3])
        return None, f"are not all in the store: {len(missing)} of {len(rollout_ids)} lack ({few})"
    collected = await session.collector.read(done["rollouts"], done["lost"])
    collected.seconds = done["seconds"]
    for what, now in _size(collected).items():
        if now < done[what]:
            return None, f"are not whole in the store: {now} {what} of {done[what]}"
    return collected, ""


def _size(collected: "Collected") -> dict[str, int]:
    """What a machine that dies may take along of a store that does not sync each commit."""
    succeeded = len(collected.ended) - collected.num_failed
    return {"succeeded": succeeded, "calls": len(collected.ledger.calls)}


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


def give_up_since(journal: "Journal", after: int) -> None:
    """Have all drawn anew that was collected after more steps than so many, or to train there.

    Args:
        journal: Of the run.
        after: How many steps stand.
    """
    begun = journal.all("collecting")
    for mode, number in dict.fromkeys((entry["mode"], entry["after"]) for entry in begun):
        if number > after or (mode, number) == ("train", after):
            give_up(journal, mode, number)


def _give_up_from(journal: "Journal", mode: RolloutMode, after: int, why: str) -> None:
    """Give up what cannot be used; where that was to train, what came after had other weights."""
    logger.warning(
        "the %s rollouts that were collected after step %d %s. They are given up, and drawn anew%s",
        "validation" if mode == "val" else "training",
        after,
        why,
        "" if mode == "val" else ", as is all that came after them",
    )
    if mode == "val":
        give_up(journal, mode, after)
    else:
        give_up_since(journal, after)


def begin(
    journal: "Journal",
    training: "Algorithm",
    what_shapes: Mapping[str, Any],
    step: int,
    generation: "Generation",
    **values: Any,
) -> bool:
    """Note as what a start goes on; where that has changed, nothing is trained again.

    Args:
        journal: Of the run.
        training: The algorithm, whose options are compared.
        what_shapes: What else is compared; see ``agl.algorithm.base.RunContext``.
        step: After which it goes on.
        generation: The start; it can be read again from here, see ``mend_generation``.
        values: For the entry.

    Returns:
        Whether it has changed.
    """
    options, others = options_that_shape(training), dict(what_shapes)
    before = journal.last("begun")
    changed = [] if before is None else _changed(before["options"], options)
    if before is not None and before["others"] and others:  # without a trainer nobody knows
        changed += _changed(before["others"], others)
    if changed:
        give_up_since(journal, step)
        give_up(journal, "val", step)
        logger.warning(
            "the run goes on after step %d as what it was not: %s. What came after that step is "
            "drawn anew",
            step,
            ", ".join(changed),
        )
    start = asdict(generation)
    journal.append("begun", step=step, options=options, others=others, start=start, **values)
    return bool(changed)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys((*before, *now))
    if ("agent" in before) != ("agent" in now):  # one was begun from Python, which records less
        names = [name for name in names if name in before and name in now]
    return [
        f"{name} is {now.get(name)!r}, was {before.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
        and not (name.startswith("version of ") and name not in before)  # a plugin more
    ]
