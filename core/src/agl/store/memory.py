"""The store in this process's memory: dicts under one lock. Nothing survives the process."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, Literal, ParamSpec, TypeVar

from agl.store import operations as ops, rules
from agl.store.base import LightningStoreStatistics
from agl.store.claim_keys import ClaimKeys
from agl.store.ids import make_id
from agl.store.local import LocalLightningStore
from agl.store.packed import unpacked
from agl.store.queries import Query, run_query
from agl.store.tables import AnySpan, Effects, Lookups, StoredAttempt, Tables
from agl.types import (
    Attempt,
    LedgerPart,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Span,
    Worker,
)
from agl.types.records import Record

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class InMemoryLightningStore(LocalLightningStore):
    """Keeps everything in memory, and forgets nothing while it lives.

    Safe to use from any thread and any event loop, whatever ``thread_safe`` says.

    Args:
        thread_safe: Accepted because scripts for 0.3 give it; the store always is.
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.
    """

    def __init__(self, *, thread_safe: bool = False, scan_interval_seconds: float = 1.0) -> None:
        super().__init__(scan_interval_seconds=scan_interval_seconds)
        self._lock = threading.Lock()
        self._tables = MemoryTables()

    async def _write(
        self,
        operation: Callable[Concatenate[Tables, float, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return self._run(operation, *args, **kwargs)

    async def _read(self, lookup: Callable[[Lookups], T]) -> T:
        with self._lock:
            return lookup(self._tables)

    def _has_queued(self) -> bool:
        return self._tables.has_queued()

    def _scan(self) -> None:
        self._run(ops.expire)

    def _run(
        self,
        operation: Callable[Concatenate[Tables, float, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with self._lock:
            effects = self._tables.effects = Effects()
            result = operation(self._tables, self._clock.now(), *args, **kwargs)
        self._publish(effects)
        return result


@dataclass(slots=True)
class _AttemptEntry:
    stored: StoredAttempt
    spans: dict[str, Span] = field(default_factory=dict[str, Span])
    """Span id -> span, in the order of arrival."""


@dataclass(slots=True)
class _RolloutEntry:
    number: int
    """Order of creation."""
    rollout: Rollout
    attempts: dict[str, _AttemptEntry] = field(default_factory=dict[str, _AttemptEntry])
    latest: _AttemptEntry | None = None

    def view(self) -> Rollout:
        rollout = ops.detached_record(self.rollout)
        if self.latest is None:
            return rollout
        return ops.attempted(rollout, ops.detached_record(self.latest.stored.attempt))


class MemoryTables:
    """Plain dicts; see ``operations.Tables``. Every step of the hot path is O(1)."""

    def __init__(self) -> None:
        self.effects = Effects()
        self._number = 0
        self._rollouts: dict[str, _RolloutEntry] = {}
        self._by_key: dict[str, str] = {}
        self._attempts: dict[str, _AttemptEntry] = {}
        # Taking from the front of a plain dict is not O(1).
        self._queue: OrderedDict[str, _RolloutEntry] = OrderedDict()
        self._by_status: dict[RolloutStatus, dict[str, _RolloutEntry]] = {}
        self._deadlines: dict[str, float] = {}
        """Attempt id -> deadline, for open attempts that have one."""
        self._open_of_worker: dict[str, dict[str, None]] = {}
        """Worker id -> ids of its open attempts, the newest last."""
        self._claim_keys = ClaimKeys()
        self._ledger: dict[tuple[str, str | None, str | None, int | None], LedgerPart] = {}
        self._resources: dict[str, ResourcesUpdate] = {}
        self._latest_resources_id: str | None = None
        self._workers: dict[str, Worker] = {}
        self._num_spans = 0

    def new_id(self, prefix: Literal["ro", "at", "rs"]) -> str:
        self._number += 1
        return make_id(prefix, self._number)

    def counts(self) -> LightningStoreStatistics:
        return {
            "total_rollouts": len(self._rollouts),
            "total_attempts": len(self._attempts),
            "total_spans": self._num_spans,
            "total_resources": len(self._resources),
            "total_workers": len(self._workers),
        }

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        entry = self._rollouts.get(rollout_id)
        return entry.rollout if entry else None

    def has_queued(self) -> bool:
        """Whether the queue holds something."""
        return bool(self._queue)

    def first_queued(self) -> Rollout | None:
        return next(iter(self._queue.values())).rollout if self._queue else None

    def rollout_id_of_key(self, key: str) -> str | None:
        return self._by_key.get(key)

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        if key is not None:
            self._by_key[key] = rollout.rollout_id
        entry = self._rollouts[rollout.rollout_id] = _RolloutEntry(
            len(self._rollouts), ops.detached_record(rollout)
        )
        self._place(entry)

    def move_rollout(self, rollout: Rollout) -> None:
        entry = self._rollouts[rollout.rollout_id]
        self._by_status[entry.rollout.status].pop(rollout.rollout_id)
        self._queue.pop(rollout.rollout_id, None)
        entry.rollout = rollout
        self._place(entry)

    def edit_rollout(self, rollout: Rollout) -> None:
        self._rollouts[rollout.rollout_id].rollout = rollout

    def _place(self, entry: _RolloutEntry) -> None:
        rollout = entry.rollout
        self._by_status.setdefault(rollout.status, {})[rollout.rollout_id] = entry
        if rollout.status in rules.QUEUED:
            self._queue[rollout.rollout_id] = entry

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        entries = (self._rollouts.get(rollout_id) for rollout_id in rollout_ids)
        return [entry.view() for entry in entries if entry is not None]

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        by_id, by_status = query.filter_on("rollout_id"), query.filter_on("status")
        entries: Iterable[_RolloutEntry] = self._rollouts.values()
        if by_id is not None and by_id.kind == "within":
            known = (self._rollouts.get(rollout_id) for rollout_id in dict.fromkeys(by_id.value))
            entries = sorted((one for one in known if one is not None), key=_creation)
        elif by_status is not None:
            groups = [self._by_status.get(status, {}) for status in dict.fromkeys(by_status.value)]
            entries = sorted((one for group in groups for one in group.values()), key=_creation)
        # Views are made for the page only.
        page = run_query([entry.rollout for entry in entries], query)
        items = [self._rollouts[rollout.rollout_id].view() for rollout in page]
        return page.model_copy(update={"items": items})

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        entry = self._rollouts.get(rollout_id)
        found = entry.attempts.get(attempt_id) if entry else None
        return found.stored if found else None

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        entry = self._rollouts.get(rollout_id)
        return entry.latest.stored.attempt if entry and entry.latest else None

    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        entry = self._rollouts.get(rollout_id)
        attempts = entry.attempts.values() if entry else ()
        return _handed_out(run_query([one.stored.attempt for one in attempts], query))

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        opened = self._open_of_worker.get(worker_id)
        if not opened:
            return None
        return self._attempts[next(reversed(opened))].stored.attempt

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        late = [self._attempts[key].stored for key, end in self._deadlines.items() if end < now]
        return [(self._rollouts[one.attempt.rollout_id].rollout, one) for one in late]

    def claimed_with(self, key: str) -> list[tuple[str, str]]:
        return self._claim_keys.made_by(key)

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None:
        attempt = stored.attempt
        if key is not None:
            self._claim_keys.add(key, attempt.rollout_id, attempt.attempt_id)
        entry = self._rollouts[attempt.rollout_id]
        entry.latest = _AttemptEntry(stored)
        entry.attempts[attempt.attempt_id] = entry.latest
        self._attempts[attempt.attempt_id] = entry.latest
        self._index_attempt(attempt, deadline)

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        attempt = stored.attempt
        entry = self._attempts[attempt.attempt_id]
        old, entry.stored = entry.stored.attempt, stored
        if attempt.status != "preparing":
            self._claim_keys.begun(attempt.attempt_id)
        if old.worker_id is not None and old.worker_id != attempt.worker_id:
            self._open_of_worker.get(old.worker_id, {}).pop(old.attempt_id, None)
        self._index_attempt(attempt, deadline)

    def take_numbers(self, stored: StoredAttempt) -> StoredAttempt:
        return stored

    def save_numbers(self, stored: StoredAttempt, deadline: float | None) -> None:
        self.save_attempt(stored, deadline)

    def _index_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        if deadline is None:
            self._deadlines.pop(attempt.attempt_id, None)
        else:
            self._deadlines[attempt.attempt_id] = deadline
        if attempt.worker_id is not None:
            opened = self._open_of_worker.setdefault(attempt.worker_id, {})
            if attempt.status in rules.OPEN:
                opened.setdefault(attempt.attempt_id)
            else:
                opened.pop(attempt.attempt_id, None)

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        return self._attempts[attempt_id].spans.keys() & span_ids

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        own = unpacked(spans)
        self._attempts[attempt_id].spans.update((span.span_id, span) for span in own)
        self._num_spans += len(spans)

    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query
    ) -> PaginatedResult[Span]:
        entry = self._rollouts.get(rollout_id)
        chosen: Iterable[_AttemptEntry] = ()
        if entry is not None and attempt_id is None:
            chosen = entry.attempts.values()
        elif entry is not None:
            one = entry.latest if attempt_id == "latest" else entry.attempts.get(attempt_id or "")
            chosen = () if one is None else (one,)
        return run_query((span for one in chosen for span in one.spans.values()), query)

    # --- the ledger

    def save_ledger_part(self, part: LedgerPart) -> None:
        key = (part.rollout_id, part.run, part.algorithm, part.step)
        old = self._ledger.get(key)
        if old is None or old.generation <= part.generation:
            self._ledger[key] = part

    def query_ledger_parts(self, query: Query) -> PaginatedResult[LedgerPart]:
        return run_query(self._ledger.values(), query)

    # --- resources and workers

    def has_resources(self, resources_id: str) -> bool:
        return resources_id in self._resources

    def latest_resources_id(self) -> str | None:
        return self._latest_resources_id

    def save_resources(self, update: ResourcesUpdate) -> None:
        self._resources[update.resources_id] = update.model_copy(deep=True)
        self._latest_resources_id = update.resources_id

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        found = self._resources.get(resources_id)
        return found and found.model_copy(deep=True)

    def latest_resources(self) -> ResourcesUpdate | None:
        return self.resources(self._latest_resources_id or "")

    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        page = run_query(self._resources.values(), query)
        return page.model_copy(update={"items": [one.model_copy(deep=True) for one in page]})

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def save_worker(self, worker: Worker) -> None:
        self._workers[worker.worker_id] = worker

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        return _handed_out(run_query(self._workers.values(), query))


def _handed_out(page: PaginatedResult[R]) -> PaginatedResult[R]:
    return page.model_copy(update={"items": [ops.detached_record(one) for one in page]})


def _creation(entry: _RolloutEntry) -> int:
    return entry.number
