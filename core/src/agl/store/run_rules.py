"""What may follow in a run: pure functions over the types; every store applies them.

A run has generations, which are its starts. The last one's outcome is the run's status; while it
has none, the run is ``running``.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar, get_args

from agl.errors import DamagedRecordError, InvalidTransitionError, ReplacedError, UnknownRecordError
from agl.types import Run, RunGeneration, RunOutcome, RunStart

T = TypeVar("T")
WRITER: Final[ContextVar[tuple[str, int] | None]] = ContextVar("agl_writer", default=None)
"""Run and generation of the start that calls the store; None for everybody else."""


def check_writer(run: Run | None, generation: int) -> None:
    """Refuse what a start writes after another one has taken over its run.

    Args:
        run: The run of ``WRITER``, as it is stored.
        generation: That of ``WRITER``.

    Raises:
        ReplacedError: It has a later start.
    """
    if run is not None and run.generations and (last := run.generations[-1]).number > generation:
        raise ReplacedError(
            f"another start has taken over run {run.run_id!r}: start {last.number}, process "
            f"{last.pid} on {last.host}. Start {generation} writes nothing any more"
        )


def written_by(
    write: Callable[..., T], writer: tuple[str, int], tables: Any, now: float, /, **given: Any
) -> T:
    """What an operation answers to a start of a run, if no other start has taken over."""
    check_writer(tables.run(writer[0]), writer[1])
    return write(tables, now, **given)


def begin(before: Run | None, start: RunStart, now: float) -> Run:
    """The run with its next generation; as it is where that has begun already.

    Raises:
        InvalidTransitionError: The stored run is of another algorithm.
        DamagedRecordError: It cannot be read.
    """
    old = before.generations if before is not None else []
    if before is not None:
        if start.key and old and old[-1].key == start.key:
            return before
        if before.algorithm != start.algorithm:
            raise InvalidTransitionError(
                f"run {start.run_id!r} is one of {before.algorithm!r}, and this is "
                f"{start.algorithm!r}; give another run id"
            )
        if before.problem:
            raise DamagedRecordError(before.problem)
    begun = RunGeneration(
        number=max(start.begun_before, *(each.number for each in old), 0) + 1,
        start_time=now,
        pid=start.pid,
        host=start.host,
        differences=start.differences,
        key=start.key,
    )
    dead = [each if each.outcome else each.changed(outcome="died") for each in old]
    return Run(
        run_id=start.run_id,
        algorithm=start.algorithm,
        create_time=now if before is None else before.create_time,
        folder=start.folder,
        seed=start.seed,
        config=start.config,
        code=start.code,
        datasets=start.datasets,
        generations=[*dead, begun],
        derived_from=start.derived_from,
    )


def end(run: Run, generation: int, outcome: RunOutcome, error: str | None, now: float) -> Run:
    """The run with the end of a generation; as it is where that has ended already.

    Raises:
        InvalidTransitionError: A run does not end so.
        ReplacedError: It would have finished, and another start has taken over.
        UnknownRecordError: It has no such generation.
    """
    if outcome not in get_args(RunOutcome):
        known = ", ".join(map(repr, get_args(RunOutcome)))
        raise InvalidTransitionError(
            f"run {run.run_id!r}: unknown outcome {outcome!r}; expected one of {known}"
        )
    numbers = [each.number for each in run.generations]
    if generation not in numbers:
        raise UnknownRecordError(
            f"run {run.run_id!r} has no generation {generation}; it has {numbers}"
            + (f". {run.problem}" if run.problem else "")
        )
    index = numbers.index(generation)
    old = run.generations[index]
    if old.outcome not in (None, "died") or outcome == old.outcome:
        return run
    end_time = None if outcome == "died" else now  # nobody saw when a process died
    ended = old.changed(outcome=outcome, error=error, end_time=end_time)
    generations = [*run.generations[:index], ended, *run.generations[index + 1 :]]
    is_last = index == len(numbers) - 1
    if outcome == "finished":
        check_writer(run, generation)
    return run.changed(generations=generations, status=outcome if is_last else run.status)


def check_deletable(run: Run) -> None:
    """Refuse to delete a run that runs.

    Raises:
        InvalidTransitionError: It does.
    """
    if run.status == "running":
        number = run.generations[-1].number if run.generations else "unknown"
        raise InvalidTransitionError(
            f"run {run.run_id!r} is running (generation {number}) and cannot be deleted. Stop it "
            "first; where its process is gone, tell the store with end_run(..., 'died')"
        )
