"""What the engine needs of a database: lookups for everybody, and tables for its operations."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

from agl.store.answers import LightningStoreStatistics
from agl.store.packed_span import AnySpan
from agl.store.queries import DocumentQuery, Query
from agl.store.waiting import Effects
from agl.types import (
    Attempt,
    AttemptedRollout,
    Document,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Worker,
)
from agl.types.records import construct

T = TypeVar("T")
SpanReader = Callable[[str | bytes, int], T]
"""Makes of a packed body and its number what the caller gets."""


class StoredAttempt(NamedTuple):
    """An attempt with the number that its next span gets, and its ``place_of_reward``."""

    attempt: Attempt
    next_sequence: int = 1
    reward_place: int = 0


def attempted(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """A rollout with its latest attempt."""
    given = {*rollout.model_fields_set, "attempt"}
    return construct(AttemptedRollout, {**rollout.__dict__, "attempt": attempt}, given)


class Lookups(Protocol):
    """Reading. None stands for no record.

    Callers get what ``views``, the resources and the queries answer, and may change it: each
    answer is made anew. The engine copies all other records before it hands them out.
    """

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The known ones of these, in this order; an ``AttemptedRollout`` if it has an attempt."""
        ...

    def latest_attempt(self, rollout_id: str) -> Attempt | None: ...
    def resources(self, resources_id: str) -> ResourcesUpdate | None: ...
    def latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was saved last, of those whose id does not begin with ``imported/``."""
        ...

    def worker(self, worker_id: str) -> Worker | None: ...
    def counts(self) -> LightningStoreStatistics: ...
    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]: ...
    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]: ...
    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query, read: SpanReader[T]
    ) -> PaginatedResult[T]:
        """Spans of a rollout, or of one attempt of it, which may be ``latest``."""
        ...

    def query_documents(self, query: DocumentQuery) -> PaginatedResult[Document]: ...
    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]: ...
    def query_workers(self, query: Query) -> PaginatedResult[Worker]: ...


class Tables(Lookups, Protocol):
    """Reading and writing in one transaction. Tables keep and find records, and know no rules.

    A caller may later change the input and the metadata of a rollout, resources and the body of a
    document: tables keep them as JSON, or keep copies. What JSON cannot hold is an
    ``InvalidRecordError`` (``json_values.json_of`` raises it); so nothing is kept of the operation.

    A database of many writers locks what ``rollout`` finds until the transaction ends, and
    ``first_queued`` passes over what is locked.
    """

    effects: Effects
    """What the present transaction did that others wait for; the engine sets it."""

    @property
    def num_changes(self) -> int:
        """Grows with each change: so the engine sees whether an operation changed something."""
        ...

    def begin(self) -> None: ...
    def commit(self) -> None:
        """Keep what was changed; it is durable when this returns."""
        ...

    def roll_back(self) -> None:
        """Undo what was changed, however far the transaction came; it raises nothing."""
        ...

    def new_id(self, prefix: Literal["ro", "at"]) -> str: ...

    def expect_claim(self, worker_id: str | None, key: str | None) -> None:
        """A claim comes: a database may read what it needs along with what is asked for before."""

    def rollout(self, rollout_id: str) -> Rollout | None: ...
    def rollout_id_of_key(self, key: str) -> str | None: ...
    def first_queued(self) -> Rollout | None: ...
    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        """Keep a new rollout; one that is ``queuing`` is the last of the queue."""
        ...

    def move_rollout(self, rollout: Rollout) -> None:
        """Keep the status, end and reward of a rollout; its other fields are as they are stored.

        It leaves the queue, or comes last in it, if its status does so.
        """
        ...

    def edit_rollout(self, rollout: Rollout) -> None:
        """Keep the other fields of a rollout; its status, end and reward are as they are stored."""
        ...

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None: ...
    def next_sequence_of_all(self, rollout_id: str) -> int:
        """A number above that of each span of the rollout."""
        ...

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        """The newest open attempt of a worker."""
        ...

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        """Attempts whose deadline has passed."""
        ...

    def made_by(self, key: str) -> list[tuple[str, str]]:
        """Rollout and attempt ids of the attempts of a key that are still ``preparing``."""
        ...

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None: ...
    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None: ...
    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]: ...
    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None: ...

    # --- documents

    def document_version(self, kind: str, key: str) -> int:
        """The version of a document; 0 if there is none."""
        ...

    def save_document(self, document: Document) -> None:
        """Keep a document, in place of the one of its kind and key."""
        ...

    def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        """Delete documents; how many were there."""
        ...

    def delete_rollouts(self, rollout_ids: Sequence[str], *, only_count: bool) -> dict[str, int]:
        """Delete rollouts with what belongs to them, or only count that; see the contract."""
        ...

    # --- other records; each is new, or takes the place of the one with its id

    @property
    def latest_resources_id(self) -> str | None: ...
    def save_resources(self, update: ResourcesUpdate) -> None: ...
    def save_worker(self, worker: Worker) -> None: ...
