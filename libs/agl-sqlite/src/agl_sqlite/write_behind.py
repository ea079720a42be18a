"""A transaction, whose rows are kept back until something is read, or committed."""

import logging
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from agl_sqlite.lookups import SqliteLookups
from agl_sqlite.row_buffer import RowBuffer

logger = logging.getLogger(__name__)


class WriteBehind(RowBuffer, SqliteLookups):
    """Lookups on the writer's connection that find what is not written yet."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._written = connection
        self._num_flushed = 0
        self._is_stale = False
        """Whether what is known beside the file may differ from it."""
        self.num_queued: int = self.one("num_queued")[0]
        """Rollouts in the queue, as of the last commit; read by any thread."""

    @property
    def connection(self) -> sqlite3.Connection:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The connection, with everything written that the current transaction has so far."""
        self.flush()
        return self._written

    @property
    def num_changes(self) -> int:
        """Grows with each change, kept back or written."""
        return self._num_kept + self._written.total_changes - self._num_flushed

    def _write_rows(self, sql: str, rows: Collection[tuple[Any, ...]]) -> None:
        before = self._written.total_changes
        self._written.executemany(sql, rows)
        self._num_flushed += self._written.total_changes - before

    def reload(self) -> None:
        """Forget what is known beside the file."""
        self.forget_rows()

    # --- copies of other stores

    def insert_rows(self, table: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Put rows into a table."""
        places = ", ".join("?" for _ in columns)
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        self.connection.executemany(sql, rows)

    def note_copied(self) -> None:
        """Count on behind what was inserted."""
        self.flush()
        self.reload()
        self.effects.queued += self.one("num_queued")[0]

    # --- transactions

    def begin(self) -> None:
        if self._is_stale or self._written.in_transaction:  # an interrupt came in between
            self._start_over()
        self._written.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.flush()
        self._written.execute("COMMIT")
        self.num_queued += self.effects.queued - self.effects.dequeued

    def roll_back(self) -> None:
        self._is_stale = True
        try:
            self._start_over()
        except sqlite3.Error:
            # What caused it is raised to the callers; the next transaction tries afresh.
            logger.exception("a transaction could not be rolled back")

    def _start_over(self) -> None:
        if self._written.in_transaction:
            self._written.execute("ROLLBACK")
        self.reload()
        self._is_stale = False
