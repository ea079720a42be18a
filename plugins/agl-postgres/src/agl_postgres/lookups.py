"""Reading a store over a connection to PostgreSQL."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from agl_sqlite.sql_lookups import SqlLookups, statements

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]


SQL: Final = statements(
    "agl_sqlite",
    "agl_postgres",
    body="body",
    newest="t.n = r.n AND t.sequence_id = (SELECT max(sequence_id) FROM attempt WHERE n = r.n)",
)
"""The statements, by name."""


def ask(connection: Connection, sql: str, values: Sequence[Any] = ()) -> "psycopg.Cursor[Any]":
    """Run a statement that has ``?`` for each value."""
    return connection.execute(sql.replace("?", "%s").encode(), values)


class PostgresLookups(SqlLookups):
    """The reading side, on one connection."""

    sql = SQL
    lock = "FOR UPDATE"
    never = "'infinity'"
    of_run = r"replace(replace(r.metadata, '\\', '\u005c'), '\u0000', '\ufffd')::json ->> 'run'"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = ask(self._connection, sql, values)
        return cursor.fetchall() if cursor.description else []

    def within(self, column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(?)", [storable(values)]

    def contains(self, column: str) -> str:
        return f"strpos({column}, ?) > 0"


def storable(keys: Iterable[T]) -> list[T]:
    """Those without a NUL, which no text of PostgreSQL has: the others nobody has stored."""

    def has_nul(key: Any) -> bool:
        return any(map(has_nul, key)) if isinstance(key, tuple) else "\0" in str(key)

    return [key for key in keys if not has_nul(key)]
