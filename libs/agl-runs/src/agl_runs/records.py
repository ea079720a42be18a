"""Runs: what was started with which configuration, code and data, and how each start ended.

A run has generations, which are its starts. The last one's outcome is the run's status; while it
has none, the run is ``running``.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field

from agl.errors import DamagedRecordError, InvalidTransitionError, ReplacedError, UnknownRecordError
from agl.types.records import Record

RunStatus = Literal["running", "stopped", "finished", "failed", "died"]
"""``stopped``: ended before its end, at a point from which it can go on. ``died``: its process is
gone without a word; a store learns it from who saw it, or from the next start."""
RunOutcome = Literal["stopped", "finished", "failed", "died"]
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""It names a folder, too."""


class DatasetDigest(Record):
    """What tells whether tasks are those of an earlier start."""

    num_tasks: int
    digest: str


class RunCode(Record):
    """The code of a run."""

    versions: dict[str, str] = Field(default_factory=dict[str, str])
    """``python``, agl-core, every installed plugin, torch and its like -> version."""
    sources: dict[str, str] = Field(default_factory=dict[str, str])
    """``agent``, ``algorithm``, ``reward``, and each option that names the user's code, as
    ``estimator`` -> digest of its source file."""
    commit: str | None = None
    """That the repository of the agent's source file is at; None where there is none."""

    @property
    def origin(self) -> dict[str, str | None]:
        """Digests of source files and the commit, by what readers call them."""
        return {**{f"code of {n}": one for n, one in self.sources.items()}, "commit": self.commit}


class RunGeneration(Record):
    """One start of a run."""

    number: int
    """From 1."""
    start_time: float
    end_time: float | None = None
    outcome: RunOutcome | None = None
    """None while it runs, and where nobody has noticed its end."""
    error: str | None = None
    """Why it failed or stopped."""
    pid: int | None = None
    host: str | None = None
    machine: str | None = None
    """Its id, where it has one: hosts may share a name."""
    differences: list[str] = Field(default_factory=list[str])
    """What was not as in the start before."""
    key: str = ""
    """Of the request that began it."""


class RunSource(Record):
    """The run that another one was derived from, whose agent was not run again."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    store: str
    """Where it is: a file, absolute, or the address of a server."""


class _About(Record):
    """What a start says of its run, and the run keeps."""

    algorithm: str
    seed: int | None = None
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options by name, without secrets."""
    code: RunCode = RunCode()
    folder: str | None = None
    """Where it writes, absolute, on the ``host`` of its last start."""
    datasets: dict[str, DatasetDigest] = Field(default_factory=dict[str, DatasetDigest])
    """``train`` and ``val``, where they are given."""
    derived_from: RunSource | None = None
    """None where its rollouts are its own."""


class RunStart(_About):
    """What is needed to begin a run, or its next generation."""

    model_config = ConfigDict(extra="forbid")

    run_id: RunId
    pid: int | None = None
    host: str | None = None
    machine: str | None = None
    """Its id, where it has one: hosts may share a name."""
    differences: list[str] = Field(default_factory=list[str])
    """What is not as in the start before."""
    begun_before: int = Field(default=0, ge=0)
    """So many starts its folder knows of; the store may know of fewer."""
    key: str = ""
    """Unique name of this start, for who may have to ask twice: it is not begun again."""


class Run(_About):
    """A run, as its last start had it."""

    run_id: str
    status: RunStatus = "running"
    create_time: float
    generations: list[RunGeneration] = Field(default_factory=list[RunGeneration])
    """Oldest first."""
    problem: str = ""
    """Why the record cannot be read; what is not given is missing then."""


def begin(before: Run | None, start: RunStart, now: float) -> Run:
    """The run with its next generation; as it is if that has begun already. See ``begin_run``."""
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
        machine=start.machine,
        differences=start.differences,
        key=start.key,
    )
    dead = [each if each.outcome else each.changed(outcome="died") for each in old]
    return Run(
        run_id=start.run_id,
        create_time=now if before is None else before.create_time,
        generations=[*dead, begun],
        **{name: getattr(start, name) for name in _About.model_fields},
    )


def end(run: Run, generation: int, outcome: RunOutcome, error: str | None, now: float) -> Run:
    """The run with the end of a generation; as it is if that has ended already. See ``end_run``."""
    if outcome not in get_args(RunOutcome):
        known = ", ".join(map(repr, get_args(RunOutcome)))
        raise InvalidTransitionError(
            f"run {run.run_id!r}: unknown outcome {outcome!r}; expected one of {known}"
        )
    old = next((each for each in run.generations if each.number == generation), None)
    if old is None:
        raise UnknownRecordError(
            f"run {run.run_id!r} has no generation {generation}; it has "
            f"{[each.number for each in run.generations]}"
            + (f". {run.problem}" if run.problem else "")
        )
    if old.outcome not in (None, "died") or outcome == old.outcome:
        return run
    end_time = None if outcome == "died" else now  # nobody saw when a process died
    ended = old.changed(outcome=outcome, error=error, end_time=end_time)
    generations = [ended if each is old else each for each in run.generations]
    is_last = old is run.generations[-1]
    if outcome == "finished" and not is_last:
        raise ReplacedError(
            f"{replaced_by(run)}. Start {generation} has come to its end, and is not the run's"
        )
    return run.changed(generations=generations, status=outcome if is_last else run.status)


def replaced_by(run: Run) -> str:
    """What an earlier start of a run is told when it would write."""
    last = run.generations[-1]
    return (
        f"another start has taken over run {run.run_id!r}: start {last.number}, process "
        f"{last.pid} on {last.host}"
    )


def canary_run(run_id: str) -> str:
    """The run of the rollouts that only watch a run: none of its own, but deleted with it."""
    return f"{run_id}/canaries"
