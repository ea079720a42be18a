"""Reading a store over a connection to SQLite."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agl.utils.json_values import json_of
from agl_sqlite.sql_lookups import SqlLookups, statements


def _bytes(column: str) -> str:
    # SQLite refuses a page with text that is no UTF-8; bytes are read one by one.
    texts = {"input", "config", "metadata", "error", "heartbeat_stats"}
    return f"CAST({column} AS BLOB)" if column.rpartition(".")[2] in texts else column


SQL: Final = statements(
    "agl_sqlite",
    body="CAST(body AS BLOB)",
    newest="t.a = (SELECT max(a) FROM attempt WHERE n = r.n)",
    column=_bytes,
)
"""The statements of ``statements.sql``, by name."""


class SqliteLookups(SqlLookups):
    """The reading side, on one connection."""

    sql = SQL
    hint = "+"
    of_run = "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.run') END"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def within(self, column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
        # json_each cuts off texts at a NUL: those with one, nobody has stored.
        known = [one for one in values if "\0" not in str(one)]
        sql = f"{column} IN (SELECT value FROM json_each(?))"
        return sql, [json_of(known, "what is looked for")]

    def contains(self, column: str) -> str:
        return f"instr({column}, ?) > 0"
