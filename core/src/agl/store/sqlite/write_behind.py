"""Rows that are kept back until something is read, or committed."""

import sqlite3
from typing import Any

from agl.store.sqlite.lookups import SQL, SqliteLookups

_KEPT_BACK = (
    "insert_rollout",
    "move_rollout",
    "insert_attempt",
    "save_attempt",
    "insert_span",
    "save_worker",
)
"""Statements in the order in which a transaction runs them: a record is made, then changed."""


class WriteBehind(SqliteLookups):
    """Lookups on the writer's connection that find what is not written yet."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._written = connection
        self._unwritten: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in _KEPT_BACK}
        """Statement -> rows by the key of their record, so that the last change of it counts."""
        self._num_kept = self._num_flushed = 0

    @property
    def connection(self) -> sqlite3.Connection:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The connection, with everything written that the current transaction has so far."""
        self.flush()
        return self._written

    @property
    def num_changes(self) -> int:
        """Grows with each change, kept back or written."""
        return self._num_kept + self._written.total_changes - self._num_flushed

    def flush(self) -> None:
        """Write what was kept back."""
        before = self._written.total_changes
        for name, rows in self._unwritten.items():
            if rows:
                self._written.executemany(SQL[name], rows.values())
                rows.clear()
        self._num_flushed += self._written.total_changes - before

    def forget_unwritten(self) -> None:
        """Drop what was kept back."""
        for rows in self._unwritten.values():
            rows.clear()

    def _keep(self, statement: str, key: Any, row: tuple[Any, ...]) -> None:
        self._unwritten[statement][key] = row
        self._num_kept += 1
