"""The schema of an SQLite file, and errors that say what to do."""

import sqlite3
from importlib.resources import files
from typing import Final

from agl.errors import (
    AglError,
    DamagedRecordError,
    InvalidRecordError,
    StoreDiskError,
    StoreError,
    StoreUnavailableError,
)

APPLICATION_ID: Final = 0x61676C73
"""``agls``: what tells our files from other SQLite files."""
SCHEMA_VERSION: Final = 9
"""Of ``schema.sql``. Before 1.0 a file of another version is refused, not migrated."""

MEMORY: Final = ":memory:"
"""SQLite's name for no file."""


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what the file is, and make the tables of a new one. An unfit file is left as it was.

    Raises:
        StoreUnavailableError: It is no store, or of another version of agl, or damaged.
    """
    try:
        tables = check_schema(connection, path)
        if not tables:
            schema = files("agl.store.sqlite").joinpath("schema.sql").read_text("utf-8")
            marks = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"
            connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\n{marks}\nCOMMIT;")
    # Where the damage is in the names of tables, Python cannot read what SQLite says of it.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise unavailable(path, error) from error


def check_schema(connection: sqlite3.Connection, path: str) -> int:
    """Refuse what is no store of this version of agl; the number of tables, 0 in a new file."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreUnavailableError(
            f"store {path!r}: an SQLite database, and no store of agl. Give the path of a new file"
        )
    if tables and version != SCHEMA_VERSION:
        made_by = "a newer agl" if version > SCHEMA_VERSION else "an older agl"
        raise StoreUnavailableError(
            f"store {path!r}: made by {made_by} (schema {version}, this one has {SCHEMA_VERSION}); "
            "it was left as it is. Open it with the agl that made it, or give the path of a new "
            "file; 'agl export' there and 'agl import' here take its rollouts along"
        )
    return tables


def unavailable(path: str, error: Exception) -> StoreUnavailableError:
    """The error of a file that cannot be opened, with what to do about it."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        advice = "Check that the file and its folder can be written, and the disk's free space"
    else:
        advice = "No store, or damaged; it was left as it is. Restore a copy, or give a new path"
    return StoreUnavailableError(f"store {path!r}: cannot be opened: {text}. {advice}")


def failure_of(path: str, error: sqlite3.Error, what: str) -> StoreError:
    """The error of a call that failed in SQLite; ``what`` of it, for the message."""
    # What SQLite says of a disk, or of a machine, that may be mended while the store is open.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    may_pass = isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
    return (StoreDiskError if may_pass else StoreError)(
        f"store {path!r}: {error}; {what}. Check the disk and its free space, then try again"
    )


def named(path: str, error: Exception, what: str = "nothing of this call was stored") -> Exception:
    """The error of a call: what SQLite or JSON says in our words, and anything else as it is."""
    if isinstance(error, AglError) or not isinstance(error, sqlite3.Error | ValueError):
        return error
    if isinstance(error, ValueError):
        ours: Exception = DamagedRecordError(
            f"store {path!r}: a record cannot be read; check the disk, and restore a copy of the "
            f"file: {' '.join(str(error).split())[:200]}"
        )
    elif isinstance(error, sqlite3.DataError):
        # Longer than SQLITE_LIMIT_LENGTH, say; trying again would not help.
        ours = InvalidRecordError(
            f"store {path!r}: {error}; {what}. Expected records that SQLite can hold: at most 1 GB"
        )
    else:
        ours = failure_of(path, error, what)
    ours.__cause__ = error
    return ours
