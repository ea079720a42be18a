"""What a transaction changes, as rows that are kept back until something is read, or committed."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final

from agl.store import rules
from agl.store.engine.tables import StoredAttempt
from agl.store.packed_span import AnySpan
from agl.store.waiting import Effects
from agl.types import Document, ResourcesUpdate, Rollout, Worker
from agl.utils.json_values import json_of
from agl_sqlite.ids import number_of
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
from agl_sqlite.sql_lookups import SqlLookups

_STATEMENTS: Final = (
    *("insert_rollout", "move_rollout", "edit_rollout", "insert_attempt", "save_attempt"),
    *("insert_span", "save_worker", "save_document", "save_resources"),
)
"""In the order in which a transaction runs them: a record is made, then changed."""


class RowBuffer(SqlLookups):
    """The writing side of the engine's ``Tables``; a record that is refused changes nothing."""

    def __init__(self) -> None:
        self._unwritten: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in _STATEMENTS}
        """Statement -> rows by the key of their record, so that the last change of it counts."""
        self._num_kept = 0
        self.effects = Effects()

    @property
    def num_changes(self) -> int:
        """Grows with each change, and not back with a commit."""
        return self._num_kept

    @abstractmethod
    def _write_rows(self, sql: str, rows: Collection[tuple[Any, ...]]) -> None:
        """Run a statement for each of these rows."""

    @abstractmethod
    def _new_position(self) -> int:
        """The next place at the end of the queue."""

    def expect_claim(self, worker_id: str | None, key: str | None) -> None:
        """What a claim needs is read when it is asked for."""

    def flush(self) -> None:
        """Write what was kept back."""
        for name, rows in self._unwritten.items():
            if rows:
                self._write_rows(self.sql[name], rows.values())
                rows.clear()

    def forget_rows(self) -> None:
        """Write none of them."""
        for rows in self._unwritten.values():
            rows.clear()

    def _keep(self, statement: str, key: Any, row: tuple[Any, ...]) -> None:
        self._unwritten[statement][key] = row
        self._num_kept += 1

    def _position(self, rollout: Rollout) -> int | None:
        return self._new_position() if rollout.status in rules.QUEUED else None

    def insert_rollout(self, rollout: Rollout, key: str | None = None) -> None:
        row = row_of_rollout(rollout, self._position(rollout), key)
        self._keep("insert_rollout", row[0], row)

    def move_rollout(self, rollout: Rollout) -> None:
        row = changed_place(rollout, self._position(rollout))
        self._keep("move_rollout", row[-1], row)

    def edit_rollout(self, rollout: Rollout) -> None:
        row = changed_fields(rollout)
        self._keep("edit_rollout", row[-1], row)

    def insert_attempt(
        self, stored: StoredAttempt, deadline: float | None, key: str | None = None
    ) -> None:
        row = row_of_attempt(stored, deadline, key)
        self._keep("insert_attempt", row[0], row)

    def save_attempt(self, stored: StoredAttempt, deadline: float | None) -> None:
        row = changed_attempt(stored, deadline)
        self._keep("save_attempt", row[-1], row)

    def insert_spans(self, attempt_id: str, spans: Sequence[AnySpan]) -> None:
        number = number_of(attempt_id)
        rows = {(number, span.span_id): row_of_span(number, span) for span in spans}
        self._unwritten["insert_span"] |= rows  # all or, where one is refused, none
        self._num_kept += len(rows)

    def save_resources(self, update: ResourcesUpdate) -> None:
        body = json_of(update.resources, f"resources {update.resources_id!r}")
        about = update.resources_id, update.create_time, update.update_time, update.version
        self._keep("save_resources", self._num_kept, (*about, body))  # all, in their order

    def save_document(self, document: Document) -> None:
        self._keep("save_document", (document.kind, document.key), row_of_document(document))

    def save_worker(self, worker: Worker) -> None:
        self._keep("save_worker", worker.worker_id, row_of_worker(worker))
