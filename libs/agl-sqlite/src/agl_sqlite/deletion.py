"""What belongs to rollouts in SQLite, counted or deleted."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from agl.utils.json_values import json_of
from agl_sqlite.ids import number_of
from agl_sqlite.lookups import SQL

_THESE: Final = "n IN (SELECT value FROM json_each(:rollouts))"
_HELD: Final = {
    "spans": f"span WHERE a IN (SELECT a FROM attempt WHERE {_THESE})",
    "documents": f"document WHERE {_THESE}",
    "attempts": f"attempt WHERE {_THESE}",
    "rollouts": f"rollout WHERE {_THESE}",
    "resources": "resources WHERE resources_id IN (SELECT value FROM json_each(:resources))",
}
"""In the order in which it can be deleted."""


def delete_rollouts(
    connection: sqlite3.Connection, rollout_ids: Sequence[str], *, only_count: bool
) -> tuple[dict[str, int], int]:
    """Delete rollouts with what belongs to them, or only count that.

    Returns:
        How many records of each kind, and how many of the rollouts were queued.
    """
    numbers = json_of(list(map(number_of, rollout_ids)), "numbers")
    ids = {"ids": json_of(list(rollout_ids), "ids of rollouts"), "numbers": numbers}
    known = [row[0] for row in connection.execute(SQL["known_rollouts"], ids)]
    values = {"rollouts": json_of(known, "numbers")}
    resources = [row[0] for row in connection.execute(SQL["resources_of_rollouts"], values)]
    values["resources"] = json_of(resources, "ids of resources")
    queued = connection.execute(SQL["queued_of"], values).fetchone()[0]
    counts: dict[str, int] = {}
    for kind, sql in _HELD.items():
        counts[kind] = connection.execute(f"SELECT count(*) FROM {sql}", values).fetchone()[0]
        if not only_count:
            connection.execute(f"DELETE FROM {sql}", values)
    return dict(reversed(counts.items())), queued
