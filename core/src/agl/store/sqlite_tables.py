"""Writing an SQLite store: ``operations.Tables`` over the writer's connection."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Literal

from agl.store import rules
from agl.store.base import LightningStoreStatistics
from agl.store.ids import make_id, number_of
from agl.store.operations import AnySpan, Effects, StoredAttempt
from agl.store.packed import PackedSpan
from agl.store.queries import Query
from agl.store.sqlite_lookups import SQL, SqliteLookups
from agl.store.sqlite_rows import attempt_of, config_json, json_of, json_or_none, rollout_of
from agl.types import Attempt, PaginatedResult, ResourcesUpdate, Rollout, Worker

_CACHE_SIZE = 20_000


class SqliteTables(SqliteLookups):
    """Both sides, on the writer's connection and in its thread.

    Claimed rollouts, open attempts and workers are also kept as objects, so that a step on them
    reads nothing; ``reload`` forgets those, after a transaction was undone. A worker changes with
    nearly every operation, often several times in one transaction; it is written by ``flush``.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.effects = Effects()
        self.written_bytes = 0
        """Roughly, since somebody set it to 0."""
        self.reload()

    def reload(self) -> None:
        """Forget what is known beside the file."""
        self._rollouts: dict[str, Rollout] = {}
        self._attempts: dict[str, StoredAttempt] = {}
        self._latest: dict[str, str] = {}
        """Rollout id -> id of its newest attempt, for rollouts in ``_rollouts``."""
        self._workers: dict[str, Worker] = {}
        self._unwritten: dict[str, Worker] = {}
        counters = self.one("counters")
        self._num_rollouts, self._num_attempts, self._position = counters[:3]
        self._num_resources, self._touched = counters[3:]
        row = self.one("latest_resources_id")
        self._latest_resources_id: str | None = row[0] if row else None

    def new_id(self, prefix: Literal["ro", "at", "rs"]) -> str:
        if prefix == "ro":
            self._num_rollouts += 1
            return make_id(prefix, self._num_rollouts)
        if prefix == "at":
            self._num_attempts += 1
            return make_id(prefix, self._num_attempts)
        return make_id(prefix, self._num_resources + 1)

    def _execute(self, name: str, *parameters: Any) -> None:
        self.connection.execute(SQL[name], parameters)

    # --- rollouts

    def rollout(self, rollout_id: str) -> Rollout | None:
        cached = self._rollouts.get(rollout_id)
        if cached is not None:
            return cached
        row = self.one("rollout", number_of(rollout_id))
        if row is None or row[0] != rollout_id:
            return None
        rollout = rollout_of(row)
        self._remember(rollout)
        return rollout

    def first_queued(self) -> Rollout | None:
        row = self.one("first_queued")
        return rollout_of(row) if row else None

    def rollout_id_of_key(self, key: str) -> str | None:
        row = self.one("rollout_id_of_key", key)
        return row[0] if row else None

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        what = f"rollout {rollout.rollout_id!r}: its input"
        text = json_of(rollout.input, what)
        self._execute(
            "insert_rollout",
            number_of(rollout.rollout_id),
            rollout.rollout_id,
            rollout.status,
            rollout.mode,
            rollout.resources_id,
            rollout.start_time,
            rollout.end_time,
            self._next_position(rollout),
            text,
            config_json(rollout.config),
            json_or_none(rollout.metadata, what),
            key,
        )
        self.written_bytes += len(text)
        self._remember(rollout)

    def move_rollout(self, rollout: Rollout) -> None:
        number = number_of(rollout.rollout_id)
        position = self._next_position(rollout)
        self._execute("move_rollout", rollout.status, rollout.end_time, position, number)
        self._remember(rollout)

    def edit_rollout(self, rollout: Rollout) -> None:
        what = f"rollout {rollout.rollout_id!r}: its new input or metadata"
        self._execute(
            "edit_rollout",
            rollout.mode,
            rollout.resources_id,
            json_of(rollout.input, what),
            config_json(rollout.config),
            json_or_none(rollout.metadata, what),
            number_of(rollout.rollout_id),
        )
        self._remember(rollout)

    def _next_position(self, rollout: Rollout) -> int | None:
        if rollout.status not in rules.QUEUED:
            return None
        self._position += 1
        return self._position

    def _remember(self, rollout: Rollout) -> None:
        if rollout.status in ("preparing", "running"):
            if len(self._rollouts) >= _CACHE_SIZE:
                self._rollouts.clear()
                self._latest.clear()
            self._rollouts[rollout.rollout_id] = rollout
        else:
            self._rollouts.pop(rollout.rollout_id, None)
            self._latest.pop(rollout.rollout_id, None)

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        cached = self._attempts.get(attempt_id)
        if cached is not None and cached.attempt.rollout_id == rollout_id:
            return cached
        row = self.connection.execute(
            f"{SQL['attempts_page']} WHERE t.a = ? AND t.n = ?",
            (number_of(attempt_id), number_of(rollout_id)),
        ).fetchone()
        if row is None or row[0] != attempt_id or not self.known(rollout_id):
            return None
        return StoredAttempt(attempt_of(rollout_id, row), row[9])

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        cached = self._attempts.get(self._latest.get(rollout_id, ""))
        if cached is not None:
            return cached.attempt
        stored = self.latest_stored(rollout_id)
        if stored is None:
            return None
        if rollout_id in self._rollouts and stored.attempt.status in rules.OPEN:
            self._latest[rollout_id] = stored.attempt.attempt_id
            self._attempts[stored.attempt.attempt_id] = stored
        return stored.attempt

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        row = self.one("open_attempt_of", worker_id)
        return self._stored_pair("rollout_of_attempt", row[0])[0][1].attempt if row else None

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        return self._stored_pair("overdue", now)

    def _stored_pair(self, name: str, parameter: Any) -> list[tuple[Rollout, StoredAttempt]]:
        found: list[tuple[Rollout, StoredAttempt]] = []
        for rollout_id, attempt_id in self.connection.execute(SQL[name], (parameter,)).fetchall():
            rollout, stored = self.rollout(rollout_id), self.attempt(rollout_id, attempt_id)
            assert rollout is not None
            assert stored is not None
            found.append((rollout, stored))
        return found

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        self._execute(
            "insert_attempt",
            number_of(attempt.attempt_id),
            number_of(attempt.rollout_id),
            attempt.attempt_id,
            attempt.sequence_id,
            attempt.status,
            attempt.worker_id,
            attempt.start_time,
            deadline,
        )
        self._keep_attempt(StoredAttempt(attempt))
        self._latest[attempt.rollout_id] = attempt.attempt_id

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        attempt = stored.attempt
        what = f"attempt {attempt.attempt_id!r}: its metadata"
        self._execute(
            "save_attempt",
            attempt.status,
            attempt.worker_id,
            attempt.end_time,
            attempt.last_heartbeat_time,
            deadline,
            stored.next_sequence,
            json_or_none(attempt.metadata, what),
            json_or_none(attempt.error, what),
            number_of(attempt.attempt_id),
        )
        self._keep_attempt(stored)

    def _keep_attempt(self, stored: StoredAttempt) -> None:
        if stored.attempt.status in rules.OPEN:
            if len(self._attempts) >= _CACHE_SIZE:
                self._attempts.clear()
            self._attempts[stored.attempt.attempt_id] = stored
        else:
            self._attempts.pop(stored.attempt.attempt_id, None)

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        if len(span_ids) == 1:
            found = self.one("known_span", number_of(attempt_id), span_ids[0])
            return set() if found is None else {span_ids[0]}
        rows = self.connection.execute(
            SQL["known_spans"], (number_of(attempt_id), json_of(list(span_ids), "span ids"))
        )
        return {row[0] for row in rows}

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        number = number_of(attempt_id)
        rows: list[tuple[Any, ...]] = []
        for span in spans:
            if isinstance(span, PackedSpan):
                body = span.body
            else:
                # The span was validated when it was made; its fields are written as they stand.
                fields = {**span.__dict__, **(span.model_extra or {})}
                body = json_of(fields, f"span {span.span_id!r} of attempt {attempt_id!r}")
            self.written_bytes += len(body)
            rows.append(
                (
                    number,
                    span.sequence_id,
                    span.span_id,
                    span.trace_id,
                    span.parent_id,
                    span.name,
                    span.start_time,
                    span.end_time,
                    body,
                )
            )
        self.connection.executemany(SQL["insert_span"], rows)

    # --- resources and workers

    def has_resources(self, resources_id: str) -> bool:
        return resources_id == self._latest_resources_id or self.resources(resources_id) is not None

    def latest_resources_id(self) -> str | None:
        return self._latest_resources_id

    def save_resources(self, update: ResourcesUpdate) -> None:
        self._num_resources += update.version == 1
        self._touched += 1
        self._execute(
            "save_resources",
            self._num_resources,
            update.resources_id,
            update.create_time,
            update.update_time,
            update.version,
            self._touched,
            json_of(update.resources, f"resources {update.resources_id!r}"),
        )
        self._latest_resources_id = update.resources_id

    def worker(self, worker_id: str) -> Worker | None:
        cached = self._workers.get(worker_id)
        return cached if cached is not None else super().worker(worker_id)

    def save_worker(self, worker: Worker) -> None:
        if len(self._workers) >= _CACHE_SIZE:
            self.flush()
            self._workers.clear()
        self._workers[worker.worker_id] = self._unwritten[worker.worker_id] = worker

    def flush(self) -> None:
        """Write the workers that changed; needed before they are read as rows, or committed."""
        for worker in self._unwritten.values():
            what = f"worker {worker.worker_id!r}: its statistics"
            self._execute(
                "save_worker",
                worker.worker_id,
                worker.status,
                json_or_none(worker.heartbeat_stats, what),
                worker.last_heartbeat_time,
                worker.last_dequeue_time,
                worker.last_busy_time,
                worker.last_idle_time,
                worker.current_rollout_id,
                worker.current_attempt_id,
            )
        self._unwritten.clear()

    def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        self.flush()
        return super().query_workers(query)

    def counts(self) -> LightningStoreStatistics:
        self.flush()
        return super().counts()
