"""Opening an SQLite file as a store: one owner, the right schema, errors that say what to do."""

import logging
import os
import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Final

from agl.errors import (
    AglError,
    DamagedRecordError,
    InvalidRecordError,
    StoreDiskError,
    StoreError,
    StoreUnavailableError,
)
from agl.utils.files import close_to_others
from agl.utils.lockfile import HeldError, LockFile

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x61676C73
"""``agls``: what tells our files from other SQLite files."""
SCHEMA_VERSION: Final = 9
"""Of ``schema.sql``. Before 1.0 a file of another version is refused, not migrated."""

MEMORY: Final = ":memory:"
"""SQLite's name for no file."""

_CHECKED_BYTES = 16 * 2**20
"""Files up to this size are checked whole when they are opened."""


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what the file is, then make its tables. An unfit file is left as it was.

    Raises:
        StoreUnavailableError: It is no store, or of another version of agl, or damaged.
    """
    try:
        tables = check_schema(connection, path)
        if tables and path != MEMORY and Path(path).stat().st_size <= _CHECKED_BYTES:
            found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
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
    # Views, triggers and virtual tables are code that SQLite would run, and no store has them.
    where = "type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL %'"
    for kind, name in connection.execute(f"SELECT type, name FROM sqlite_master WHERE {where}"):
        what = f"has the {kind} {name!r}, which SQLite would run whenever the store is used"
        raise StoreUnavailableError(f"store {path!r}: {what}. Do not use this file")
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


_MAY_PASS: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
    }
)
"""What SQLite says of a disk, or of a machine, that may be mended while the store is open."""


def failure_of(path: str, error: sqlite3.Error, what: str) -> StoreError:
    """The error of a call that failed in SQLite; ``what`` of it, for the message."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind = StoreDiskError if code in _MAY_PASS else StoreError
    return kind(
        f"store {path!r}: {error}; {what}. Check the disk and its free space, then try again"
    )


def unreadable(path: str, error: ValueError) -> DamagedRecordError:
    """The error of a record whose JSON is none."""
    return DamagedRecordError(
        f"store {path!r}: a record cannot be read; check the disk, and restore a copy of the file: "
        + " ".join(str(error).split())[:200]
    )


def named(path: str, error: Exception) -> Exception:
    """The error of a write: what SQLite or JSON says in our words, and anything else as it is."""
    if isinstance(error, AglError) or not isinstance(error, sqlite3.Error | ValueError):
        return error
    if isinstance(error, ValueError):
        ours: Exception = unreadable(path, error)
    elif isinstance(error, sqlite3.DataError):
        # Longer than SQLITE_LIMIT_LENGTH, say; trying again would not help.
        ours = InvalidRecordError(
            f"store {path!r}: {error}; nothing of this call was stored. Expected records that "
            "SQLite can hold: at most 1 GB each"
        )
    else:
        ours = failure_of(path, error, "nothing of this call was stored")
    ours.__cause__ = error
    return ours


class OpenedFile:
    """The file of a store, its log and its lock, as they were when the store was opened.

    SQLite goes on with a file that was deleted or replaced, and all that is stored then is lost
    with the process; and without its lock another process may own the store.
    """

    def __init__(self, path: str) -> None:
        self._path, file = path, os.path.realpath(path)
        self._known = {name: os.stat(name) for name in (file, f"{file}-wal", f"{file}.lock")}

    def check(self) -> None:
        """Look whether they are still there.

        Raises:
            StoreUnavailableError: One was deleted or replaced.
        """
        for name, known in self._known.items():
            try:
                happened = "replaced by another file"
                if os.path.samestat(os.stat(name), known):
                    continue
            except OSError as error:
                happened = "deleted" if isinstance(error, FileNotFoundError) else error.strerror
            raise StoreUnavailableError(
                f"store {self._path!r}: {name!r} was {happened} while the store was open, and "
                "nothing more is stored: it could be lost. Stop the process that serves it, put "
                "the file back from a copy or give a new path, and start again"
            )


def own(path: str) -> LockFile:
    """Lock ``<path>.lock`` for as long as this process owns the store, then make the file.

    Raises:
        StoreUnavailableError: Another process owns it, it is no store, its folder cannot be
            written, or the file has several names.
    """
    real, file = os.path.realpath(path), Path(path)
    if not file.parent.is_dir():
        raise StoreUnavailableError(
            f"store {path!r}: no folder {str(file.parent)!r}; make it, or give another path"
        )
    try:
        lock = LockFile(f"{real}.lock")
    except HeldError as held:
        raise _in_use(path, str(held)) from None
    except OSError as error:
        raise StoreUnavailableError(
            f"store {path!r}: cannot make '{real}.lock' beside it: {error.strerror}. "
            "A store needs a folder that can be written; give another path"
        ) from error
    try:
        if file.exists() and not file.is_file():
            raise StoreUnavailableError(f"store {path!r}: not a file; give the path of a file")
        # Before it is opened: with the first file object of a file that is closed, a process loses
        # all locks that SQLite has on it, also by another name.
        if file.exists() and (names := file.stat().st_nlink) > 1 and file.is_file():
            raise StoreUnavailableError(
                f"store {path!r}: the file has {names} names (hard links). SQLite keeps its log "
                "beside one of them only, and opened by another, records are lost. Remove the "
                "other names, or make a copy"
            )
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreUnavailableError(
                f"store {path!r}: cannot be opened for writing: {error.strerror}; check its "
                "permissions"
            ) from error
    except BaseException:
        lock.release()
        raise
    return lock


def close_store_to_others(path: str) -> None:
    """Take from other users what they may do with a store, as keys may be in it."""
    file = os.path.realpath(path)
    modes = [close_to_others(name) for name in (file, f"{file}-wal", f"{file}-shm")]
    if modes[0] is not None:
        logger.warning(
            "store %r: other users of this machine could open it (mode %04o), and it may hold "
            "keys; from now on only its owner can",
            path,
            modes[0],
        )


def _in_use(path: str, owner: str) -> StoreUnavailableError:
    if owner == f"process {os.getpid()}":
        return StoreUnavailableError(
            f"store {path!r}: open in this process already. Close that one first "
            "(asyncio.run(trainer.store.close())), or give it: Trainer(store=...)"
        )
    return StoreUnavailableError(
        f"store {path!r}: in use by {owner}. Stop that one, or reach its store over HTTP "
        "with agl.LightningStoreClient"
    )
