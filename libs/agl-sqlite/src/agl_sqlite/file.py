"""The schema of an SQLite file, how to read it beside its owner, and errors that say what to do."""

import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import quote

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


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what the file is, and make the tables of a new one. An unfit file is left as it was.

    Raises:
        StoreUnavailableError: It is no store, or of another version of agl, or damaged.
    """
    try:
        tables = check_schema(connection, path)
        if not tables:
            schema = files("agl_sqlite").joinpath("schema.sql").read_text("utf-8")
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
        made_by, advice = "a newer agl", "Update agl, or give the path of a new file"
        if version < SCHEMA_VERSION:
            made_by = "an older agl"
            advice = (
                "Give a new file; if that agl has 'agl export --as store', 'agl import' reads it"
            )
        raise StoreUnavailableError(
            f"store {path!r}: made by {made_by} (schema {version}, this one has {SCHEMA_VERSION}); "
            f"it was left as it is. {advice}"
        )
    return tables


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection to the file of a store, which others may have open, or open later.

    It changes nothing. SQLite keeps a log beside the file meanwhile; it removes the log at the end
    if it may write the file. If there is no log and none can be made, nobody writes;
    a log with records that cannot be read is a ``StoreUnavailableError``.
    """
    log = file.with_name(f"{file.name}-wal")
    try:
        return _opened(file, "mode=ro" if log.exists() else "mode=rw")
    except sqlite3.OperationalError as error:
        if log.exists() and log.stat().st_size:
            raise StoreUnavailableError(
                f"store {str(file)!r}: {log.name!r} beside it has records that cannot be read: "
                f"{error}. Copy both files to a folder that you may write, and read them there"
            ) from error
        return _opened(file, "mode=ro&immutable=1")


def _opened(file: Path, how: str) -> sqlite3.Connection:
    place = f"file:{quote(str(file.absolute()))}?{how}"
    connection = sqlite3.connect(place, uri=True)
    try:
        connection.execute("PRAGMA query_only=ON")
        if not check_schema(connection, str(file)):
            raise StoreUnavailableError(f"store {str(file)!r}: it has no tables; nothing is stored")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError) or not isinstance(error, sqlite3.Error):
            raise
        raise unavailable(str(file), error) from error
    return connection


def unavailable(path: str, error: Exception) -> StoreUnavailableError:
    """The error of a file that cannot be opened, with what to do about it."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        advice = "Check that the file and its folder can be written, and the disk's free space"
    else:
        advice = "No store, or damaged; it was left as it is. Restore a copy, or give a new path"
    return StoreUnavailableError(f"store {path!r}: cannot be opened: {text}. {advice}")


def named(path: str, error: Exception, what: str = "nothing of this call was stored") -> Exception:
    """The error of a call: what SQLite or JSON says in our words, and anything else as it is."""
    if isinstance(error, AglError) or not isinstance(error, sqlite3.Error | ValueError):
        return error
    if isinstance(error, UnicodeEncodeError):
        ours: Exception = InvalidRecordError(
            f"store {path!r}: {error}; {what}. Expected ids of text that UTF-8 can hold"
        )
    elif isinstance(error, ValueError):
        ours = DamagedRecordError(
            f"store {path!r}: a record cannot be read: {' '.join(str(error).split())[:200]}. "
            "Check the disk, and restore a copy of the file; or delete that one and read the "
            "others: delete_rollouts and delete_documents do it by its id"
        )
    elif isinstance(error, sqlite3.DataError):
        # Longer than SQLITE_LIMIT_LENGTH, say; trying again would not help.
        ours = InvalidRecordError(
            f"store {path!r}: {error}; {what}. Expected records that SQLite can hold: at most 1 GB"
        )
    else:
        # What SQLite says of a disk, or of a machine, that may be mended while the store is open.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        may_pass = isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
        ours = (StoreDiskError if may_pass else StoreError)(
            f"store {path!r}: {error}; {what}. Check the disk and its free space, then try again"
        )
    ours.__cause__ = error
    return ours
