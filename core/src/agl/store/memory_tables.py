"""All records of a store in memory: what the engine needs of a database, over dicts and lists."""

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from agl.store import rules
from agl.store.answers import LightningStoreStatistics
from agl.store.engine.tables import SpanReader, StoredAttempt, T, Tables, attempted
from agl.store.packed_span import AnySpan, PackedSpan, packed
from agl.store.queries import DocumentQuery, Query, make_page
from agl.store.table import Queue, SortedTable, Table, UndoLog, page
from agl.store.waiting import Effects
from agl.types import Attempt, Document, PaginatedResult, ResourcesUpdate, Rollout, Worker
from agl.utils.json_values import copy_of_record, json_of


class _Key(NamedTuple):
    """The key of a request that made a rollout."""

    key: str
    rollout_id: str


class AttemptRow(NamedTuple):
    """An attempt, and by what it is found."""

    attempt_id: str
    rollout_id: str
    stored: StoredAttempt
    deadline: float | None
    key: str | None
    """Of the request that made the attempt."""


class MemoryTables(Tables):
    """All records of a store, which nobody else holds.

    What a caller may change later is copied as it comes and as it goes, or kept as JSON.
    """

    def __init__(self) -> None:
        self.effects = Effects()
        self._undo_log = log = UndoLog()
        of = attrgetter
        self.rollouts = Table[Rollout](log, "rollout_id", status=of("status"), run=_run)
        self.queue = Queue[Rollout](log, "rollout_id")
        self.rollout_keys = Table[_Key](log, "key", rollout_id=of("rollout_id"))
        self.attempts = Table[AttemptRow](
            log,
            "attempt_id",
            rollout_id=of("rollout_id"),
            worker=lambda one: (
                one.stored.attempt.worker_id if one.stored.attempt.status in rules.OPEN else None
            ),
            key=lambda one: one.key if one.stored.attempt.status == "preparing" else None,
            has_deadline=lambda one: None if one.deadline is None else True,
        )
        self.spans = Table[PackedSpan](log, "attempt_id", "span_id", rollout_id=of("rollout_id"))
        self.snapshots = Table[ResourcesUpdate](log, "resources_id")
        self.latest = Table[ResourcesUpdate](log)
        self.workers = Table[Worker](log, "worker_id")
        self.documents = SortedTable[Document](log, "kind", "key", rollout_id=of("rollout_id"))

    # --- transactions

    @property
    def num_changes(self) -> int:
        return len(self._undo_log)

    def begin(self) -> None:
        self.roll_back()  # what an interrupt has left

    def commit(self) -> None:
        self._undo_log.clear()

    def roll_back(self) -> None:
        while self._undo_log:
            table, key, row = self._undo_log[-1]
            table.put(key, row)
            self._undo_log.pop()

    def new_id(self, prefix: Literal["ro", "at"]) -> str:
        return f"{prefix}-{secrets.token_hex(8)}"

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        return self.rollouts.get(rollout_id)

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = map(self.rollouts.get, rollout_ids)
        return [self._view(rollout) for rollout in found if rollout is not None]

    def _view(self, rollout: Rollout) -> Rollout:
        latest = self.latest_attempt(rollout.rollout_id)
        rollout = copy_of_record(rollout)
        return rollout if latest is None else attempted(rollout, copy_of_record(latest))

    def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        return self.rollouts.page(query, self._view)

    def rollout_id_of_key(self, key: str) -> str | None:
        made = self.rollout_keys.get(key)
        return None if made is None else made.rollout_id

    def first_queued(self) -> Rollout | None:
        first = self.queue.first()
        return None if first is None else self.rollouts.get(first.rollout_id)

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        if key is not None:
            self.rollout_keys.save(_Key(key, rollout.rollout_id))
        self.move_rollout(copy_of_record(rollout))

    def move_rollout(self, rollout: Rollout) -> None:
        self.rollouts.save(rollout)
        is_queued = rollout.rollout_id in self.queue.rows
        if rollout.status in rules.QUEUED and not is_queued:
            self.queue.save(rollout)
        elif rollout.status not in rules.QUEUED and is_queued:
            self.queue.delete(rollout)

    def edit_rollout(self, rollout: Rollout) -> None:
        self.rollouts.save(copy_of_record(rollout))

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        row = self.attempts.get(attempt_id)
        return row.stored if row is not None and row.rollout_id == rollout_id else None

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        row = self.attempts.newest("rollout_id", rollout_id)
        return None if row is None else row.stored.attempt

    def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        rows = self.attempts.where("rollout_id", rollout_id)
        return page([(place, row.stored.attempt) for place, row in rows], query, copy_of_record)

    def next_sequence_of_all(self, rollout_id: str) -> int:
        rows = self.attempts.where("rollout_id", rollout_id)
        return max((row.stored.next_sequence for _, row in rows), default=1)

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        row = self.attempts.newest("worker", worker_id)
        return None if row is None else row.stored.attempt

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        return [
            (self.rollouts.rows[row.rollout_id][1], row.stored)
            for _, row in self.attempts.where("has_deadline", True)
            if row.deadline is not None and row.deadline < now
        ]

    def made_by(self, key: str) -> list[tuple[str, str]]:
        return [(row.rollout_id, row.attempt_id) for _, row in self.attempts.where("key", key)]

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None:
        ids = stored.attempt.attempt_id, stored.attempt.rollout_id
        self.attempts.save(AttemptRow(*ids, stored, deadline, key))

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        _, row = self.attempts.rows[stored.attempt.attempt_id]
        attempt = stored.attempt
        if attempt.error is not None:
            json_of(attempt.error, f"attempt {attempt.attempt_id!r}: its error")
        stored = stored._replace(attempt=copy_of_record(attempt))
        self.attempts.save(row._replace(stored=stored, deadline=deadline))

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        return {span_id for span_id in span_ids if (attempt_id, span_id) in self.spans.rows}

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        for span in spans:
            self.spans.save(packed(span))

    def query_spans(
        self, rollout_id: str, attempt_id: str | None, query: Query, read: SpanReader[T]
    ) -> PaginatedResult[T]:
        rows = self.spans.where("rollout_id", rollout_id)
        if attempt_id == "latest" and (latest := self.latest_attempt(rollout_id)) is not None:
            attempt_id = latest.attempt_id
        if attempt_id is not None:
            rows = [row for row in rows if row[1].attempt_id == attempt_id]
        return page(rows, query, lambda span: read(span.body, span.sequence_id))

    # --- resources and workers

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        update = self.snapshots.get(resources_id)
        return None if update is None else _read_resources(update)

    @property
    def latest_resources_id(self) -> str | None:
        latest = self.latest.get()
        return None if latest is None else latest.resources_id

    def latest_resources(self) -> ResourcesUpdate | None:
        latest = self.latest.get()
        return None if latest is None else _read_resources(latest)

    def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        return self.snapshots.page(query, _read_resources)

    def save_resources(self, update: ResourcesUpdate) -> None:
        text = json_of(update.resources, f"resources {update.resources_id!r}")
        update = update.changed(resources=text)
        self.snapshots.save(update)
        if not update.resources_id.startswith(rules.IMPORTED):
            self.latest.save(update)

    def worker(self, worker_id: str) -> Worker | None:
        return self.workers.get(worker_id)

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        return self.workers.page(query, copy_of_record)

    def save_worker(self, worker: Worker) -> None:
        self.workers.save(copy_of_record(worker))

    # --- documents

    def query_documents(self, query: DocumentQuery) -> PaginatedResult[Document]:
        documents, kind, ids = self.documents, query.kind, query.rollout_id_in
        first, last = (kind, query.key_prefix), (kind, f"{query.key_prefix}\U0010ffff")
        wanted = None
        if query.key_in is not None:
            wanted = {(kind, key) for key in query.key_in} & documents.rows.keys()
        if ids is not None:
            found = {(one.kind, one.key) for _, one in documents.where("rollout_id", *ids)}
            wanted = found if wanted is None else found & wanted
        if wanted is None:
            keys = documents.keys(first, last)
        else:
            keys = sorted(key for key in wanted if first <= key <= last)
        begin = 0 if query.after is None else bisect_right(keys, (kind, query.after))
        page = keys[begin : None if query.limit < 0 else begin + query.limit]
        read = [one.changed(body=from_json(one.body)) for k in page if (one := documents.get(k))]
        return make_page(read, Query(limit=query.limit), total=len(keys))

    def document_version(self, kind: str, key: str) -> int:
        document = self.documents.get((kind, key))
        return 0 if document is None else document.version

    def save_document(self, document: Document) -> None:
        body = json_of(document.body, f"document {document.key!r} of kind {document.kind!r}")
        self.documents.save(document.changed(body=body, expect=None))

    def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        known = self.documents.rows.keys() & {(kind, key) for key in keys}
        for one in known:
            self.documents.delete(self.documents.rows[one][1])
        return len(known)

    # --- all of it

    def counts(self) -> LightningStoreStatistics:
        return {
            "total_rollouts": len(self.rollouts.rows),
            "total_attempts": len(self.attempts.rows),
            "total_spans": len(self.spans.rows),
            "total_resources": len(self.snapshots.rows),
            "total_workers": len(self.workers.rows),
        }

    def delete_rollouts(self, rollout_ids: Sequence[str], *, only_count: bool) -> dict[str, int]:
        tables: dict[str, Table[Any]] = {
            "rollouts": self.rollouts,
            "attempts": self.attempts,
            "spans": self.spans,
            "documents": self.documents,
            "queue": self.queue,
            "keys": self.rollout_keys,
        }
        found = {name: table.where("rollout_id", *rollout_ids) for name, table in tables.items()}
        gone = {rollout.rollout_id for _, rollout in found["rollouts"]}
        kept = {
            one.resources_id for _, one in self.rollouts.rows.values() if one.rollout_id not in gone
        }
        used = {rollout.resources_id for _, rollout in found["rollouts"]}
        unused = used - kept - {self.latest_resources_id}
        found["resources"] = self.snapshots.where("resources_id", *unused)
        tables["resources"] = self.snapshots
        if not only_count:
            for name, rows in found.items():
                for _, record in rows:
                    tables[name].delete(record)
        names = "rollouts", "attempts", "spans", "documents", "resources"
        return {name: len(found[name]) for name in names}


def _run(rollout: Rollout) -> str | None:
    run = (rollout.metadata or {}).get("run")
    return run if isinstance(run, str) else None


def _read_resources(update: ResourcesUpdate) -> ResourcesUpdate:
    text: Any = update.resources
    return ResourcesUpdate(**{**update.__dict__, "resources": from_json(text)})
