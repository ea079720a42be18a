"""Rollouts, attempts, workers: the records of work."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast, overload

from pydantic import BaseModel, ConfigDict, Field, model_validator

TaskInput = Any
"""What a task is made of: any JSON value."""
PRIVATE = "private"
"""Under this key a task holds what only its grader may see, such as the answer."""

RolloutStatus = Literal[
    "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"
]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
WorkerStatus = Literal["idle", "busy", "unknown"]
RolloutMode = Literal["train", "val", "test"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
F = TypeVar("F", bound="Failure | None")


def without_private(input: TaskInput) -> TaskInput:
    """A copy of a task without its ``private`` part, for graded agents and readers of the store."""
    if not isinstance(input, dict) or PRIVATE not in input:
        return cast(Any, input)
    return {key: value for key, value in cast(dict[str, Any], input).items() if key != PRIVATE}


def private_of(input: TaskInput) -> Any:
    """What ``without_private`` leaves out; None where there is no such key."""
    return cast(dict[str, Any], input).get(PRIVATE) if isinstance(input, dict) else None


class Record(BaseModel):
    """Base of all nouns: immutable, times in unix seconds."""

    model_config = ConfigDict(frozen=True)

    def __setattr__(self, name: str, value: Any) -> None:
        kind, is_resource = type(self).__name__, "resource_type" in type(self).model_fields
        how = "add_resources or" if is_resource else "update_rollout, update_attempt or"
        raise AttributeError(
            f"{kind}.{name} was set, and a {kind} is not changed in place. What is stored changes "
            f"by the store's {how} update_resources; a copy with another value is made by "
            f"model_copy(update={{{name!r}: ...}})"
        )

    def changed(self, **changes: Any) -> Self:
        """A copy with other values, not validated; a sixth of the cost of ``model_copy``."""
        old = self.__pydantic_fields_set__  # copies share it: nobody changes it in place
        given = old if changes.keys() <= old else _shared(frozenset(old | changes.keys()))
        extra = None if self.__pydantic_extra__ is None else {**self.__pydantic_extra__}
        return construct(type(self), self.__dict__ | changes, given, extra)


R = TypeVar("R", bound=Record)
_set_given, _set_extra, _set_private = (
    vars(BaseModel)[f"__pydantic_{name}__"].__set__ for name in ("fields_set", "extra", "private")
)


@functools.cache
def _shared(names: frozenset[str]) -> set[str]:
    return set(names)


@functools.cache
def _all_fields(kind: type[Record]) -> set[str]:
    return set(kind.model_fields)


def construct(
    kind: type[R], values: dict[str, Any], given: set[str] | None = None, extra: Any = None
) -> R:
    """A record of all these values, not validated; ``given`` are those not left at defaults."""
    record = object.__new__(kind)
    object.__setattr__(record, "__dict__", values)  # records are frozen
    _set_given(record, _all_fields(kind) if given is None else given)
    _set_extra(record, extra)
    _set_private(record, None)
    return record


class RolloutConfig(Record):
    """Deadlines and retries of one rollout. The limits hold for each attempt."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: float | None = Field(default=None, gt=0)
    """An attempt that runs longer ends as ``timeout``."""
    unresponsive_seconds: float | None = Field(default=None, gt=0)
    """An attempt that gives no sign (span or heartbeat) for longer becomes ``unresponsive``."""
    max_attempts: int = Field(default=1, ge=1)
    retry_condition: list[AttemptStatus] = Field(default_factory=list[AttemptStatus])
    """Attempt statuses after which another attempt is made, while ``max_attempts`` allows."""


Boundary = Literal[
    "agent", "timeout", "tracer", "model", "evaluator", "cancelled", "lost", "resources", "hook",
    "store",
]  # fmt: skip
"""Where an attempt failed. ``store``: what it wrote is something that the store does not keep."""


class Failure(Record):
    """Why an attempt did not succeed: which boundary failed, and how."""

    model_config = ConfigDict(extra="forbid")

    boundary: Boundary
    type: str
    """Qualified name of the exception, or a short code where there was none."""
    message: str
    traceback: str | None = None


def public_failure(failure: F) -> F:
    """A failure for logs and readers; hides a grader's message, which may hold the answer."""
    if failure is None or failure.boundary != "evaluator":
        return failure
    said = "hidden from readers; `agl show ROLLOUT` prints it"
    return cast(F, failure.changed(message=said, traceback=None))


class Attempt(Record):
    """One execution of a rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """1 for the first attempt of the rollout."""
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None
    error: Failure | None = None
    """Set when the attempt failed, timed out or was lost. Not in 0.3."""
    reward: float | None = None
    """The final reward among its spans so far, as ``find_final_reward`` says. Not in 0.3."""


class Rollout(Record):
    """One task to be done by the agent, and how far it is."""

    rollout_id: str
    input: TaskInput
    start_time: float
    """When it was enqueued."""
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    """That of its last attempt, once it has succeeded: the one that counts. Not in 0.3."""


class AttemptedRollout(Rollout):
    """A rollout with its latest attempt."""

    attempt: Attempt

    @model_validator(mode="after")
    def check_consistency(self) -> "AttemptedRollout":
        """Refuse an attempt of another rollout."""
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(
                f"rollout {self.rollout_id!r}: its attempt {self.attempt.attempt_id!r} belongs to "
                f"{self.attempt.rollout_id!r}"
            )
        return self


class EnqueueRolloutRequest(Record):
    """What is needed to queue one rollout."""

    model_config = ConfigDict(extra="forbid")

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    key: str | None = None
    """Unique name of the task, for those who may have to ask twice: where a rollout with this key
    is stored already, nothing is queued, and the answer is that rollout, as it is now. Not in 0.3.
    """


class Worker(Record):
    """A runner as the store sees it."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None


class Document(Record):
    """What a library or a plugin keeps in a store: a JSON value under a kind and a key.

    Agents and runners neither read nor write documents; a runner's token is not for them.
    """

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(min_length=1, max_length=100)
    """Named after who keeps it, such as ``ledger``."""
    key: str = Field(min_length=1, max_length=1000)
    """Unique among the documents of its kind, which are sorted by it."""
    body: Any
    version: int = Field(default=1, ge=1, le=1 << 53)
    """The writer counts it; see ``LightningStore.put_documents``."""
    rollout_id: str | None = None
    """The rollout that it is about, and with which it is deleted."""
    expect: int | None = Field(default=None, ge=0, le=1 << 53)
    """Of one that is put: the version that must be stored, 0 for none. None in an answer."""


class PaginatedResult(BaseModel, Sequence[T], Generic[T]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """One page of a query; behaves as the sequence of its items."""

    items: Sequence[T]
    limit: int
    """As asked for; -1 means all."""
    offset: int
    total: int
    """How many match, before paging."""

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.items)


class Dataset(Protocol[T_co]):
    """Tasks by position: a list is one, and so is a Hugging Face dataset."""

    def __getitem__(self, index: int, /) -> T_co: ...
    def __len__(self) -> int: ...
