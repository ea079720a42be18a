"""What the engine's operations keep and find in PostgreSQL, by rounds that read ahead."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from agl.store import rules
from agl.store.engine.tables import StoredAttempt, attempted
from agl.store.packed_span import AnySpan
from agl.types import Attempt, Document, ResourcesUpdate, Rollout, Worker
from agl.utils.json_values import copy_of_record, json_of
from agl_postgres.lookups import SQL, ask, storable
from agl_postgres.rounds import Missing, Rounds, Rows, lock_number
from agl_sqlite.ids import make_id, number_of
from agl_sqlite.rows import (
    changed_attempt,
    changed_fields,
    changed_place,
    row_of_attempt,
    row_of_document,
    row_of_rollout,
    row_of_span,
    row_of_worker,
)
from agl_sqlite.sql_lookups import delete_rollouts


class PostgresTables(Rounds):
    """The engine's ``Tables``."""

    # --- what reads or writes many records: alone, as it sees what is written

    def _directly(self) -> None:
        if not self.is_alone:
            self._wants_alone = True
            raise Missing
        self._flush()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        self._directly()
        return super().rows(sql, values)

    def insert_rows(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """Put rows into a table."""
        sql = f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            for row in rows:
                copy.write_row(row)

    def note_copied(self) -> None:
        """Count on behind what was inserted."""
        self.one("set_sequences")
        self.effects.queued += self.one("num_queued")[0]
        self.touch()

    def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        self._directly()
        self._num_unwritten += 1
        # Who puts one has read its version, and nobody deletes it meanwhile.
        locks = sorted(lock_number("document", (kind, key)) for key in keys)
        ask(self._connection, SQL["lock"], [locks])
        sql = "DELETE FROM document WHERE kind = ? AND key = ANY(?)"
        return ask(self._connection, sql, [kind, storable(keys)]).rowcount

    def delete_rollouts(self, rollout_ids: Sequence[str], *, only_count: bool) -> dict[str, int]:
        # What PostgreSQL knows of the sizes of tables may be old: it would read all spans.
        self.rows("SET LOCAL enable_seqscan = off")
        counts, num_queued = delete_rollouts(self, rollout_ids, only_count=only_count)
        if not only_count:
            self._num_unwritten += 1
            self.effects.dequeued += num_queued
            self._known["rollout"] |= dict.fromkeys(rollout_ids)
            gone = set(rollout_ids)
            for open_ones in self._known["open"].values():
                for one, stored in list(open_ones.items()):
                    if stored.attempt.rollout_id in gone:
                        del open_ones[one]
        return counts

    # --- rollouts

    def new_id(self, prefix: Literal["ro", "at"]) -> str:
        return make_id(prefix, self._number("rollout" if prefix == "ro" else "attempt"))

    def _number(self, kind: str) -> int:
        """The next one; 0 in a round that lacks it."""
        self._next[kind] += 1
        return next(iter(self._numbers[kind][self._next[kind] - 1 :]), 0)

    def rollout(self, rollout_id: str) -> Rollout | None:
        self._want("attempts", rollout_id)  # which is asked for as well
        return self._need("rollout", rollout_id)

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        for one in rollout_ids:
            self._want("rollout", one)
        views: list[Rollout] = []
        for rollout in filter(None, map(self.rollout, rollout_ids)):
            latest, view = self.latest_attempt(rollout.rollout_id), copy_of_record(rollout)
            views.append(view if latest is None else attempted(view, copy_of_record(latest)))
        return views

    def rollout_id_of_key(self, key: str) -> str | None:
        found = self._want("key", key)
        if found is not None and found not in self._known["rollout"]:
            for one in filter(None, self._known["key"].values()):  # those of all keys at once
                self._want("rollout", one)
                self._want("attempts", one)
        return found

    def first_queued(self) -> Rollout | None:
        for rollout_id in self._known["queue"]:
            rollout = self._known["rollout"][rollout_id]
            if rollout_id in self._queued_here and not self._is_whole_queue:
                break
            if rollout is not None and rollout.status in rules.QUEUED:
                return rollout
        if not self._is_whole_queue:
            self._need("queue", None)
        return None

    def _position(self, rollout: Rollout) -> int | None:
        if rollout.status not in rules.QUEUED:
            return None
        queue = self._known["queue"]
        queue.pop(rollout.rollout_id, None)
        queue[rollout.rollout_id] = None
        self._queued_here.add(rollout.rollout_id)
        return self._number("position")

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        row = row_of_rollout(rollout, self._position(rollout), key)
        self._keep("insert_rollout", row[0], row)
        if key is not None:
            self._known["key"][key] = rollout.rollout_id
        self._known["rollout"][rollout.rollout_id] = copy_of_record(rollout)
        self._known["attempts"][rollout.rollout_id] = {}

    def move_rollout(self, rollout: Rollout) -> None:
        row = changed_place(rollout, self._position(rollout))
        self._keep("move_rollout", row[-1], row)
        self._known["rollout"][rollout.rollout_id] = rollout

    def edit_rollout(self, rollout: Rollout) -> None:
        row = changed_fields(rollout)
        self._keep("edit_rollout", row[-1], row)
        self._known["rollout"][rollout.rollout_id] = copy_of_record(rollout)

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        self._want("rollout", rollout_id)  # which is asked for as well, and locked
        return self._need("attempts", rollout_id).get(attempt_id)

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        self._want("rollout", rollout_id)
        *_, latest = [None, *self._need("attempts", rollout_id).values()]
        return latest and latest.attempt

    def next_sequence_of_all(self, rollout_id: str) -> int:
        made: Iterable[StoredAttempt] = self._need("attempts", rollout_id).values()
        return max((one.next_sequence for one in made), default=1)

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        self._want("worker", worker_id)
        open_ones: dict[str, StoredAttempt] = self._need("open", worker_id)
        newest = max(open_ones, key=number_of, default=None)
        return None if newest is None else open_ones[newest].attempt

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        if None not in self._known["overdue"]:
            self._need("overdue", now)
        found = self._known["overdue"][None]
        for rollout_id, _ in found:
            self._want("rollout", rollout_id)
            self._want("attempts", rollout_id)
        for rollout_id, _ in found:  # their workers too
            for stored in (self._known["attempts"].get(rollout_id) or {}).values():
                if stored.attempt.status in rules.OPEN and stored.attempt.worker_id is not None:
                    self._want("worker", stored.attempt.worker_id)
                    self._want("open", stored.attempt.worker_id)
        overdue = [(self.rollout(one), self.attempt(one, of)) for one, of in found]
        return [(rollout, stored) for rollout, stored in overdue if rollout and stored]

    def made_by(self, key: str) -> list[tuple[str, str]]:
        return self._want("claim", key) or []

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None:
        attempt = stored.attempt
        row = row_of_attempt(stored, deadline, key)
        self._keep("insert_attempt", row[0], row)
        if key is not None:
            made = self._known["claim"].setdefault(key, [])
            made.append((attempt.rollout_id, attempt.attempt_id))
        self._keep_attempt(stored)

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        row = changed_attempt(stored, deadline)
        self._keep("save_attempt", row[-1], row)
        self._keep_attempt(stored)

    def _keep_attempt(self, stored: StoredAttempt) -> None:
        attempt = stored.attempt
        self._known["attempts"][attempt.rollout_id][attempt.attempt_id] = stored
        for worker, open_ones in self._known["open"].items():
            open_ones.pop(attempt.attempt_id, None)
            if worker == attempt.worker_id and attempt.status in rules.OPEN:
                open_ones[attempt.attempt_id] = stored

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        number = number_of(attempt_id)
        return {one for one in span_ids if self._want("span", (number, one))}

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        number = number_of(attempt_id)
        for span in spans:
            self._keep("insert_span", (number, span.span_id), row_of_span(number, span))
            self._known["span"][number, span.span_id] = True

    # --- documents, resources, workers

    def document_version(self, kind: str, key: str) -> int:
        return self._want("document", (kind, key)) or 0

    def save_document(self, document: Document) -> None:
        place = document.kind, document.key
        self._keep("save_document", place, row_of_document(document))
        self._known["document"][place] = document.version

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        return self._need("snapshot", resources_id)

    @property
    def latest_resources_id(self) -> str | None:
        return self._want("latest", None)

    def save_resources(self, update: ResourcesUpdate) -> None:
        body = json_of(update.resources, f"resources {update.resources_id!r}")
        about = update.resources_id, update.create_time, update.update_time, update.version
        self._keep("save_resources", update.resources_id, (*about, body))
        self._known["snapshot"][update.resources_id] = update
        if not update.resources_id.startswith(rules.IMPORTED):
            self._known["latest"][None] = update.resources_id

    def worker(self, worker_id: str) -> Worker | None:
        self._want("open", worker_id)  # which is asked for as well
        return self._need("worker", worker_id)

    def save_worker(self, worker: Worker) -> None:
        self._keep("save_worker", worker.worker_id, row_of_worker(worker))
        self._known["worker"][worker.worker_id] = worker
