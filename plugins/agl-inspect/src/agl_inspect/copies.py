"""A store's file as it is now, in a place of its own: for reading without touching anything."""

import sqlite3
from contextlib import closing
from pathlib import Path

from agl.errors import DamagedRecordError
from agl.runs.finding import open_to_read


def copy_store(file: Path, folder: Path) -> Path:
    """Copy the file of a store, whether it is open elsewhere or not; the copy.

    Args:
        file: The store's.
        folder: Gets the copy, ``store.db``.

    Raises:
        DamagedRecordError: It cannot be read.
    """
    copy = folder / "store.db"
    copy.touch(mode=0o600)
    try:
        with closing(open_to_read(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise DamagedRecordError(f"{file}: cannot be copied for reading: {error}") from error
    return copy
