"""What a run holds in SQLite, counted or deleted."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from agl.store.sqlite.ids import number_of
from agl.store.sqlite.lookups import SQL
from agl.utils.json_values import json_of

_OF_RUN: Final = "n IN (SELECT value FROM json_each(:rollouts))"
_HELD: Final = {
    "spans": f"span WHERE a IN (SELECT a FROM attempt WHERE {_OF_RUN})",
    "documents": f"document WHERE {_OF_RUN}",
    "ledger_parts": f"ledger_part WHERE run = :run OR {_OF_RUN}",
    "attempts": f"attempt WHERE {_OF_RUN}",
    "rollouts": f"rollout WHERE {_OF_RUN}",
    "resources": "resources WHERE resources_id IN (SELECT value FROM json_each(:resources))",
}
"""What a run holds, in the order in which it can be deleted."""


def delete_run(
    connection: sqlite3.Connection, run_id: str, *, only_count: bool
) -> tuple[dict[str, int], int]:
    """Delete a run with what it holds, or only count that.

    Returns:
        How many records of each kind, and how many of its rollouts were queued.
    """
    numbers = [row[0] for row in connection.execute(SQL["rollouts_of_run"], (run_id,))]
    counts, num_queued = _delete(connection, run_id, numbers, only_count)
    if not only_count:
        connection.execute(SQL["delete_run"], (run_id,))
    del counts["documents"]
    return counts, num_queued


def delete_rollouts(
    connection: sqlite3.Connection, rollout_ids: Sequence[str], *, only_count: bool
) -> tuple[dict[str, int], int]:
    """Delete rollouts with what belongs to them, or only count that; see ``delete_run``."""
    numbers = json_of(list(map(number_of, rollout_ids)), "numbers")
    ids = {"ids": json_of(list(rollout_ids), "ids of rollouts"), "numbers": numbers}
    known = [row[0] for row in connection.execute(SQL["known_rollouts"], ids)]
    counts, num_queued = _delete(connection, None, known, only_count)
    del counts["ledger_parts"]
    return counts, num_queued


def _delete(
    connection: sqlite3.Connection, run_id: str | None, numbers: list[int], only_count: bool
) -> tuple[dict[str, int], int]:
    values = {"run": run_id, "rollouts": json_of(numbers, "numbers")}
    resources = [row[0] for row in connection.execute(SQL["resources_of_rollouts"], values)]
    values["resources"] = json_of(resources, "ids of resources")
    queued = connection.execute(SQL["queued_of"], values).fetchone()[0]
    counts: dict[str, int] = {}
    for kind, sql in _HELD.items():
        counts[kind] = connection.execute(f"SELECT count(*) FROM {sql}", values).fetchone()[0]
        if not only_count:
            connection.execute(f"DELETE FROM {sql}", values)
    return dict(reversed(counts.items())), queued
