"""Reading a store over a connection to PostgreSQL."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from agl.store.engine.tables import SpanReader
from agl.types import Rollout
from agl_sqlite import rows
from agl_sqlite.ids import number_of
from agl_sqlite.sql_lookups import SqlLookups, statements

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]


SQL: Final = statements(
    {
        "rollout": ", ".join(f"r.{name}" for name in rows.ROLLOUT_FIELDS),
        # Attempts have the number of their rollout, and not its id.
        "attempt": ", ".join(
            f"{'r' if name == 'rollout_id' else 't'}.{name}" for name in rows.ATTEMPT_FIELDS
        ),
        "worker": ", ".join(rows.WORKER_FIELDS),
        "resources": rows.RESOURCES_COLUMNS,
        "body": "body",
        "newest": "t.n = r.n AND t.sequence_id = "
        "(SELECT max(sequence_id) FROM attempt WHERE n = r.n)",
        "worker_fields": ", ".join(rows.WORKER_FIELDS),
        "worker_values": ", ".join("?" for _ in rows.WORKER_FIELDS),
        "worker_changes": ", ".join(f"{name} = excluded.{name}" for name in rows.WORKER_FIELDS),
    },
    "agl_postgres",
)
"""The statements, by name."""


def ask(connection: Connection, sql: str, values: Sequence[Any] = ()) -> "psycopg.Cursor[Any]":
    """Run a statement that has ``?`` for each value."""
    return connection.execute(sql.replace("?", "%s").encode(), values)


class PostgresLookups(SqlLookups):
    """The reading side, on one connection."""

    sql = SQL
    never = "'infinity'"
    of_run = r"replace(replace(r.metadata, '\\', '\u005c'), '\u0000', '\ufffd')::json ->> 'run'"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return ask(self._connection, sql, values).fetchall()

    def within(self, column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(?)", [storable(values)]

    def contains(self, column: str) -> str:
        return f"strpos({column}, ?) > 0"

    def views(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        sql = f"{SQL['rollouts_page']} WHERE r.n = ANY(?)"
        found = {row[0]: row for row in self.rows(sql, [list(map(number_of, rollout_ids))])}
        return [rows.view_of(found[one]) for one in rollout_ids if one in found]

    def spans(self, keys: Sequence[int], read: SpanReader[T]) -> list[T]:
        rows = self.rows("SELECT k, body, sequence_id FROM span WHERE k = ANY(?)", [list(keys)])
        found = {key: read(body, number) for key, body, number in rows}
        return [found[key] for key in keys]


def storable(keys: Iterable[T]) -> list[T]:
    """Those without a NUL, which no text of PostgreSQL has: the others nobody has stored."""

    def has_nul(key: Any) -> bool:
        return any(map(has_nul, key)) if isinstance(key, tuple) else "\0" in str(key)

    return [key for key in keys if not has_nul(key)]
