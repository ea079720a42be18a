"""Reading a store over a connection to PostgreSQL."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import psycopg

from agl_sqlite.sql_lookups import SqlLookups, statements

Connection = psycopg.Connection[tuple[Any, ...]]

SQL: Final = statements(
    "agl_sqlite",
    "agl_postgres",
    body="body",
    newest="t.n = r.n AND t.sequence_id = (SELECT max(sequence_id) FROM attempt WHERE n = r.n)",
)
"""The statements, by name."""
_TYPES: Final = {int: "bigint", float: "float8"}


def ask(connection: Connection, sql: str, values: Sequence[Any] = ()) -> "psycopg.Cursor[Any]":
    """Run a statement that has ``?`` for each value."""
    values = [_array(one) if isinstance(one, list) else one for one in values]
    return connection.execute(sql.replace("?", "%s").encode(), values)


def _array(values: list[Any]) -> str:
    """A list as PostgreSQL reads it, sooner than psycopg; str() of an Enum would be its name."""
    texts = (str.replace(one, "\\", r"\\") if isinstance(one, str) else str(one) for one in values)
    return '{"' + '","'.join(one.replace('"', r"\"") for one in texts) + '"}' if values else "{}"


@cache
def batched(name: str, types: tuple[type, ...]) -> str:
    """A statement for many values at once: each row comes behind the number of its values.

    Args:
        types: Of the values; the statement gets an array of their numbers, and one of each.
    """
    columns = [f"p{number}" for number in range(len(types))]
    places = iter(columns)
    sql = re.sub(r"\?", lambda _: f"v.{next(places)}", SQL[name])
    arrays = ", ".join(f"?::{_TYPES.get(one, 'text')}[]" for one in (int, *types))
    values = f"unnest({arrays}) AS v({', '.join(['i', *columns])})"
    return f"SELECT v.i, s.* FROM {values}, LATERAL ({sql}) AS s"


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


def storable(keys: Iterable[Any]) -> list[Any]:
    """Those without a NUL, which no text of PostgreSQL has: the others nobody has stored."""
    parts = ((key, key if isinstance(key, tuple) else (key,)) for key in keys)
    return [key for key, values in parts if not any("\0" in str(one) for one in values)]
