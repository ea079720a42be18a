"""Runs: what was started with which configuration, code and data, and how each start ended."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

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
    agent: str | None = None
    """Digest of the agent's source file."""
    commit: str | None = None
    """That the repository of the agent's source file is at; None where there is none."""


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


class RunStart(Record):
    """What is needed to begin a run, or its next generation."""

    model_config = ConfigDict(extra="forbid")

    run_id: RunId
    algorithm: str
    seed: int | None = None
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options by name, without secrets."""
    code: RunCode = RunCode()
    folder: str | None = None
    """Where it writes, absolute, on ``host``."""
    datasets: dict[str, DatasetDigest] = Field(default_factory=dict[str, DatasetDigest])
    """``train`` and ``val``, where they are given."""
    pid: int | None = None
    host: str | None = None
    differences: list[str] = Field(default_factory=list[str])
    """What is not as in the start before."""
    begun_before: int = Field(default=0, ge=0)
    """So many starts its folder knows of; the store may know of fewer."""
    derived_from: RunSource | None = None
    key: str = ""
    """Unique name of this start, for who may have to ask twice: it is not begun again."""


class Run(Record):
    """A run, as its last start had it."""

    run_id: str
    algorithm: str
    status: RunStatus = "running"
    create_time: float
    folder: str | None = None
    seed: int | None = None
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    code: RunCode = RunCode()
    datasets: dict[str, DatasetDigest] = Field(default_factory=dict[str, DatasetDigest])
    generations: list[RunGeneration] = Field(default_factory=list[RunGeneration])
    """Oldest first."""
    derived_from: RunSource | None = None
    """None where its rollouts are its own."""
    problem: str = ""
    """Why the record cannot be read; what is not given is missing then."""
