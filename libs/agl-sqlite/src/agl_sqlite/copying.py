"""Copying a whole store into another one, as its rows are: ids, numbers and the queue's order."""

from collections.abc import Callable
from typing import Any, Final

from agl.errors import ConfigError
from agl_sqlite.database_store import DatabaseStore
from agl_sqlite.rows import ATTEMPT_FIELDS, RESOURCES_COLUMNS, ROLLOUT_FIELDS, WORKER_FIELDS
from agl_sqlite.sql_lookups import SqlLookups

_AT_ONCE = 500
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "rollout": ("n", "position", "key", *ROLLOUT_FIELDS),
    "attempt": (
        *("a", "n", "deadline", "next_sequence", "key", "reward_place"),
        *(name for name in ATTEMPT_FIELDS if name != "rollout_id"),
    ),
    "span": (
        *("k", "a", "sequence_id", "span_id", "trace_id", "parent_id", "name"),
        *("start_time", "end_time", "body"),
    ),
    "document": ("kind", "key", "version", "n", "rollout_id", "body"),
    "resources": ("r", "touched", *RESOURCES_COLUMNS.split(", ")),
    "worker": ("w", *WORKER_FIELDS),
}
"""Table -> its columns in every database; a table comes behind those that it names."""


async def copy_store(
    source: DatabaseStore[Any], target: DatabaseStore[Any], progress: Callable[[str, int], None]
) -> dict[str, int]:
    """Copy a store, as it is at this moment, in one transaction: all of it, or nothing.

    Args:
        source: Goes on as it is.
        target: Must be empty. After a kill it still is.
        progress: Called with a table and the number of its rows that are copied so far.

    Returns:
        The number of rows of each table.

    Raises:
        ConfigError: ``target`` holds something.
        InvalidRecordError: It cannot hold a record.
    """
    return await source.look_up(lambda lookups: target.write(_copy(lookups, progress)))


def _copy(
    lookups: SqlLookups, progress: Callable[[str, int], None]
) -> Callable[[Any, float], dict[str, int]]:
    def operation(tables: Any, now: float) -> dict[str, int]:
        tables.rows(tables.sql["lock_all"])
        for table in _COLUMNS:
            if tables.rows(f"SELECT 1 FROM {table} LIMIT 1"):
                raise ConfigError(f"there is a {table} already; give the place of an empty store")
        copied = {table: _copy_table(lookups, tables, table, progress) for table in _COLUMNS}
        tables.note_copied()
        return copied

    return operation


def _copy_table(
    lookups: SqlLookups, tables: Any, table: str, progress: Callable[[str, int], None]
) -> int:
    columns = _COLUMNS[table]
    key = columns[:2] if table == "document" else columns[:1]
    order, places = ", ".join(key), ", ".join("?" for _ in key)
    sql = f"SELECT {', '.join(columns)} FROM {table}"
    count, where, last = 0, "", ()
    while rows := lookups.rows(f"{sql}{where} ORDER BY {order} LIMIT {_AT_ONCE}", last):
        tables.insert_rows(table, columns, rows)
        where, last = f" WHERE ({order}) > ({places})", rows[-1][: len(key)]
        progress(table, count := count + len(rows))
    return count
