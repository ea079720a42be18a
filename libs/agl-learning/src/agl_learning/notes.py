"""Notes that an algorithm keeps in a store as rollouts, so that they are not counted as such."""

import sqlite3
from importlib.resources import files
from typing import Final

from agl_runs.result import NOTE

MOST_LOOKED_AT: Final = 20_000
"""Rollouts without a mode, the newest, among which there may be notes."""


def notes_in(connection: sqlite3.Connection) -> dict[str, int]:
    """Status -> notes in a store's file."""
    sql = files("agl_learning").joinpath("notes.sql").read_text("utf-8")
    values = {"most": MOST_LOOKED_AT, "note": f'$."{NOTE}"'}
    return dict(connection.execute(sql, values).fetchall())
