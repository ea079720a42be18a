"""What a store keeps and finds, without any rules: what operations are made of."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from agl.store.base import LightningStoreStatistics
from agl.store.packed import PackedSpan
from agl.store.queries import Query
from agl.types import Attempt, LedgerPart, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker

AnySpan = Span | PackedSpan


class Effects:
    """What an operation did that somebody outside may wait for."""

    __slots__ = ("dequeued", "ended", "limits", "queued")

    def __init__(self) -> None:
        self.queued = 0
        """Rollouts that entered the queue."""
        self.dequeued = 0
        """Rollouts that left it."""
        self.ended: list[str] = []
        """Rollouts that reached a final status."""
        self.limits = False
        """Whether a record now has a deadline, so that a watchdog must look."""

    def add(self, other: "Effects") -> None:
        """Take over what another operation did."""
        self.queued += other.queued
        self.dequeued += other.dequeued
        self.ended += other.ended
        self.limits = self.limits or other.limits


class StoredAttempt(NamedTuple):
    """An attempt with the number that its next span gets."""

    attempt: Attempt
    next_sequence: int = 1


class Lookups(Protocol):
    """The reading side of a store."""

    def counts(self) -> LightningStoreStatistics: ...
    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The known ones of these, in this order; as ``AttemptedRollout`` once attempted."""
        ...

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]: ...
    def latest_attempt(self, rollout_id: str) -> Attempt | None: ...
    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]: ...
    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query
    ) -> PaginatedResult[Span]: ...
    def query_ledger_parts(self, query: Query) -> PaginatedResult[LedgerPart]: ...
    def resources(self, resources_id: str) -> ResourcesUpdate | None: ...
    def latest_resources(self) -> ResourcesUpdate | None: ...
    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]: ...
    def worker(self, worker_id: str) -> Worker | None: ...
    def query_workers(self, query: Query) -> PaginatedResult[Worker]: ...


class Tables(Lookups, Protocol):
    """Both sides of a store; each method is one step of an operation."""

    effects: Effects

    def new_id(self, prefix: Literal["ro", "at", "rs"]) -> str: ...

    def rollout(self, rollout_id: str) -> Rollout | None: ...
    def first_queued(self) -> Rollout | None: ...
    def rollout_id_of_key(self, key: str) -> str | None: ...
    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        """Keep a copy of a new rollout, at the end of the queue if its status says so."""
        ...

    def move_rollout(self, rollout: Rollout) -> None:
        """Keep status and end time; leave the queue or join its end as the status says."""
        ...

    def edit_rollout(self, rollout: Rollout) -> None:
        """Keep all the other fields."""
        ...

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None: ...
    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        """The newest open attempt of a worker."""
        ...

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        """Open attempts whose deadline has passed."""
        ...

    def claimed_with(self, key: str) -> list[tuple[str, str]]:
        """Rollout and attempt id of the attempts with this key that nobody has begun yet."""
        ...

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None: ...
    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None: ...
    def take_numbers(self, stored: StoredAttempt) -> StoredAttempt:
        """The attempt with its next number, for an operation that gives out numbers."""
        ...

    def save_numbers(self, stored: StoredAttempt, deadline: float | None) -> None:
        """``save_attempt`` after numbers were reserved; more may be, beside the operations."""
        ...

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are stored."""
        ...

    def insert_spans(self, attempt_id: str, spans: "Sequence[AnySpan]") -> None: ...

    def save_ledger_part(self, part: LedgerPart) -> None:
        """Keep it in the place of one with the same key, unless that is of a later generation."""
        ...

    def has_resources(self, resources_id: str) -> bool: ...
    def latest_resources_id(self) -> str | None: ...
    def save_resources(self, update: ResourcesUpdate) -> None:
        """Keep the snapshot, which becomes the latest."""
        ...

    def save_worker(self, worker: Worker) -> None: ...
