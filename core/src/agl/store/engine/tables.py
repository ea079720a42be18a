"""What the engine needs of a database: lookups for everybody, and tables for its operations."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from agl.store.answers import LightningStoreStatistics
from agl.store.packed_span import AnySpan
from agl.store.queries import Query
from agl.store.waiting import Effects
from agl.types import (
    Attempt,
    AttemptedRollout,
    LedgerPart,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Run,
    Span,
    Worker,
)
from agl.types.records import construct


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
    """Reading. Each record is a new one, or one that nobody changes; None stands for no record."""

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The known ones of these, in this order; an ``AttemptedRollout`` if it has an attempt."""
        ...

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The newest attempt of a rollout."""
        ...

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """A snapshot of resources."""
        ...

    def latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was saved last, of those whose id does not begin with ``imported/``."""
        ...

    def worker(self, worker_id: str) -> Worker | None:
        """A worker."""
        ...

    def run(self, run_id: str) -> Run | None:
        """A run."""
        ...

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        """A page of rollouts, as ``views`` has them."""
        ...

    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        """A page of a rollout's attempts."""
        ...

    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query
    ) -> PaginatedResult[Span]:
        """A page of the spans of a rollout, of one attempt or of the ``latest``."""
        ...

    def query_ledger_parts(self, query: Query) -> PaginatedResult[LedgerPart]:
        """A page of accounts."""
        ...

    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        """A page of snapshots."""
        ...

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        """A page of workers."""
        ...

    def query_runs(self, query: Query) -> PaginatedResult[Run]:
        """A page of runs."""
        ...

    def counts(self) -> LightningStoreStatistics:
        """How many records there are."""
        ...


class Tables(Lookups, Protocol):
    """Reading and writing in one transaction. Tables keep and find records, and know no rules."""

    effects: Effects
    """What the present transaction did that others wait for; the engine sets it."""

    @property
    def num_changes(self) -> int:
        """Grows with each change: so the engine sees whether an operation changed something."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Keep what it changed; it is durable when this returns."""
        ...

    def roll_back(self) -> None:
        """Undo what it changed, however far it came; it raises nothing."""
        ...

    def new_id(self, prefix: Literal["ro", "at"]) -> str:
        """The id of a new rollout or attempt."""
        ...

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        """A rollout without its attempt. A database of many writers locks it until the end."""
        ...

    def rollout_id_of_key(self, key: str) -> str | None:
        """Id of the rollout that was queued under a key."""
        ...

    def first_queued(self) -> Rollout | None:
        """The first of the queue. A database of many writers skips those that are locked."""
        ...

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        """Keep a new rollout; a queued one is the last of the queue."""
        ...

    def move_rollout(self, rollout: Rollout) -> None:
        """Keep the status, end and reward of a rollout, and its place in the queue."""
        ...

    def edit_rollout(self, rollout: Rollout) -> None:
        """Keep the other fields of a rollout."""
        ...

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        """An attempt of a rollout."""
        ...

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
    ) -> None:
        """Keep a new attempt."""
        ...

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        """Keep a changed attempt."""
        ...

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        """Those of the ids that the attempt has a span of."""
        ...

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        """Keep new spans of an attempt."""
        ...

    # --- other records

    @property
    def latest_resources_id(self) -> str | None:
        """The id of ``latest_resources``."""
        ...

    def save_resources(self, update: ResourcesUpdate) -> None:
        """Keep a snapshot, new or changed."""
        ...

    def save_worker(self, worker: Worker) -> None:
        """Keep a worker, new or changed."""
        ...

    def save_ledger_part(self, part: LedgerPart) -> None:
        """Keep an account, in place of one that the contract says; see ``add_ledger_parts``."""
        ...

    def save_run(self, run: Run) -> None:
        """Keep a run, new or changed."""
        ...

    def delete_run(self, run_id: str, *, only_count: bool) -> dict[str, int]:
        """Delete a run and what it holds, or only count that; see the contract."""
        ...
