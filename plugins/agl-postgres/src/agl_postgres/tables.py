"""What the engine's operations keep and find in PostgreSQL, by rounds that read ahead."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from agl.store.engine.tables import StoredAttempt
from agl.store.memory_tables import MemoryTables
from agl.store.packed_span import AnySpan, packed
from agl.types import Attempt, Document, ResourcesUpdate, Rollout, Worker
from agl_postgres.lookups import ask, storable
from agl_postgres.rounds import FIRST, Rounds, Rows, lock_number
from agl_sqlite.ids import make_id, number_of
from agl_sqlite.row_buffer import RowBuffer
from agl_sqlite.rows import resources_of, worker_of
from agl_sqlite.sql_lookups import delete_rollouts

MOST_OVERDUE = 1000  # attempts of one transaction; the next looks at the next ones


def _in_both(name: str) -> Any:
    """A method that changes what is in memory, and has it written."""
    write, put = getattr(RowBuffer, name), getattr(MemoryTables, name)

    def change(tables: "PostgresTables", *values: Any, **options: Any) -> None:
        write(tables, *values, **options)
        put(tables.memory, *values, **options)

    return change


class PostgresTables(Rounds):
    """The engine's ``Tables``: those in memory answer, and what changes them is also written."""

    # --- what reads or writes many records: alone, as it sees what is written

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
        self.touch()
        # Who puts one has read its version, and nobody deletes it meanwhile.
        self._hold([lock_number("document_version", (kind, key)) for key in keys])
        sql = "DELETE FROM document WHERE kind = ? AND key = ANY(?)"
        return ask(self._connection, sql, [kind, storable(keys)]).rowcount

    def delete_rollouts(self, rollout_ids: Sequence[str], *, only_count: bool) -> dict[str, int]:
        # What PostgreSQL knows of the sizes of tables may be old: it would read all spans.
        self.rows("SET LOCAL enable_seqscan = off")
        if not only_count:  # who queues with resources holds them, too
            sql = "SELECT DISTINCT resources_id FROM rollout WHERE n = ANY(?)"
            found = self.rows(sql, [list(map(number_of, rollout_ids))])
            self._hold([lock_number("resources", resources_id) for resources_id in found])
        counts, num_queued = delete_rollouts(self, rollout_ids, only_count=only_count)
        if not only_count:
            self.touch()
            self.effects.dequeued += num_queued
            self.memory.delete_rollouts(rollout_ids, only_count=False)
        return counts

    # --- rollouts

    def new_id(self, prefix: Literal["ro", "at"]) -> str:
        return make_id(prefix, self._number("rollouts" if prefix == "ro" else "attempts"))

    def _number(self, sequence: str) -> int:
        """The next one; 0 in a round that lacks it."""
        self._next[sequence] += 1
        rows = self._want("number", sequence, self._next[sequence])
        return rows[0][0] if rows else 0

    def _want_rollouts(self, rollout_ids: Iterable[str]) -> None:
        for number in map(number_of, rollout_ids):
            self._want("rollouts", number)
            self._want("attempts_of_rollout", number)

    def _with(self, *rollout_ids: str) -> MemoryTables:
        """The tables in memory, once these rollouts are there with their attempts."""
        self._want_rollouts(rollout_ids)
        for number in map(number_of, rollout_ids):
            self._need("rollouts", number)
            self._need("attempts_of_rollout", number)
        return self.memory

    def rollout(self, rollout_id: str) -> Rollout | None:
        return self._with(rollout_id).rollout(rollout_id)

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        return self._with(*rollout_ids).views(rollout_ids)

    def rollout_id_of_key(self, key: str) -> str | None:
        found = [rollout_id for (rollout_id,) in self._want("rollout_id_of_key", key)]
        if found and ("rollouts", number_of(found[0])) not in self._found:
            for (name, *_), rows in self._found.items():  # those of all keys at once
                if name == "rollout_id_of_key":
                    self._want_rollouts(rollout_id for (rollout_id,) in rows)
        return found[0] if found else self.memory.rollout_id_of_key(key)

    def expect_claim(self, worker_id: str | None, key: str | None) -> None:
        if not self.num_rounds:  # later ones have it, and would ask for what is behind it
            self._want(*self._queue)
        if key is not None:
            self._want("attempts_of_key", key)
        if worker_id is not None:
            self._want("worker", worker_id)
            self._want("attempts_of_worker", worker_id)

    def first_queued(self) -> Rollout | None:
        first = self.memory.first_queued()
        is_read = first is not None and self.memory.queue.rows[first.rollout_id][0] < 0
        if is_read or self._queue in self._found:  # which is then the end
            return first
        self._need(*self._queue)  # what is queued here is behind all that others queued
        return self.first_queued()

    def _new_position(self) -> int:
        return self._number("positions")

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        super().insert_rollout(rollout, key)
        number = number_of(rollout.rollout_id)
        self._found |= {("rollouts", number): [], ("attempts_of_rollout", number): []}
        self.memory.insert_rollout(rollout, key)

    move_rollout = _in_both("move_rollout")
    edit_rollout = _in_both("edit_rollout")

    # --- attempts

    def attempt(self, rollout_id: str, attempt_id: str) -> StoredAttempt | None:
        return self._with(rollout_id).attempt(rollout_id, attempt_id)

    def latest_attempt(self, rollout_id: str) -> Attempt | None:
        return self._with(rollout_id).latest_attempt(rollout_id)

    def next_sequence_of_all(self, rollout_id: str) -> int:
        return self._with(rollout_id).next_sequence_of_all(rollout_id)

    def open_attempt_of(self, worker_id: str) -> Attempt | None:
        self._want("worker", worker_id)
        self._need("attempts_of_worker", worker_id)
        made = [row.stored.attempt for _, row in self.memory.attempts.where("worker", worker_id)]
        return max(made, key=lambda attempt: number_of(attempt.attempt_id), default=None)

    def overdue(self, now: float) -> list[tuple[Rollout, StoredAttempt]]:
        # `now` differs between rounds, and what is asked for must not.
        self._overdue = self._overdue or ("overdue_since", now, *self._looked_until, MOST_OVERDUE)
        rows = self._need(*self._overdue)
        self._looked_until = rows[-1][2:] if len(rows) == MOST_OVERDUE else FIRST
        rollout_ids = [rollout_id for rollout_id, *_ in rows]
        self._want_rollouts(rollout_ids)
        for _, row in self.memory.attempts.where("rollout_id", *rollout_ids):
            if (worker_id := row.stored.attempt.worker_id) is not None:
                self._want("worker", worker_id)
                self._want("attempts_of_worker", worker_id)
        found = [(self.rollout(one), self.attempt(one, of)) for one, of, *_ in rows]
        return [(rollout, stored) for rollout, stored in found if rollout and stored]

    def made_by(self, key: str) -> list[tuple[str, str]]:
        self._want("attempts_of_key", key)
        made = self.memory.made_by(key)
        self._want_rollouts(rollout_id for rollout_id, _ in made)
        return made

    insert_attempt = _in_both("insert_attempt")
    save_attempt = _in_both("save_attempt")

    # --- spans

    def known_spans(self, attempt_id: str, span_ids: Sequence[str]) -> set[str]:
        number = number_of(attempt_id)
        stored = {one for one in span_ids if self._want("span", number, one)}
        return stored | self.memory.known_spans(attempt_id, span_ids)

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        spans = list(map(packed, spans))
        super().insert_spans(attempt_id, spans)
        self.memory.insert_spans(attempt_id, spans)

    # --- documents, resources, workers

    def document_version(self, kind: str, key: str) -> int:
        ((version,),) = self._want("document_version", kind, key) or [(0,)]
        made = self.memory.documents.get((kind, key))
        return version if made is None else made.version

    def save_document(self, document: Document) -> None:
        super().save_document(document)
        self.memory.documents.save(document.changed(body=None))

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        rows = self._need("resources", resources_id)
        return self.memory.resources(resources_id) or next(map(resources_of, rows), None)

    @property
    def latest_resources_id(self) -> str | None:
        rows = self._want("latest_resources_id")
        return self.memory.latest_resources_id or (rows[0][0] if rows else None)

    save_resources = _in_both("save_resources")

    def worker(self, worker_id: str) -> Worker | None:
        self._want("attempts_of_worker", worker_id)  # which is asked for as well
        rows = self._need("worker", worker_id)
        return self.memory.worker(worker_id) or next(map(worker_of, rows), None)

    save_worker = _in_both("save_worker")
