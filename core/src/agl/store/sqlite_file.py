"""Opening an SQLite file as a store: one owner, the right schema, errors that say what to do."""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from agl.errors import StoreUnavailableError

APPLICATION_ID: Final = 0x61676C73
"""``agls``: what tells our files from other SQLite files."""
SCHEMA_VERSION: Final = 2
"""Of ``schema.sql``; ``migrations/N.sql`` makes version N out of the one before."""

MEMORY: Final = ":memory:"
"""SQLite's name for no file."""

_HEADER = b"SQLite format 3\x00"
_CHECKED_BYTES = 16 * 2**20
"""Files up to this size are checked whole when they are opened."""


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what the file is, then make or migrate its tables. An unfit file is left as it was.

    Raises:
        StoreUnavailableError: It is no store, or of a newer agl, or damaged.
    """
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise StoreUnavailableError(
                f"store {path!r}: an SQLite database, but not a store of agl "
                f"(application_id {application}). Give the path of a new file"
            )
        if version > SCHEMA_VERSION:
            raise StoreUnavailableError(
                f"store {path!r}: made by a newer agl (schema {version}, this one knows up to "
                f"{SCHEMA_VERSION}). Run: pip install --upgrade agl-core"
            )
        if tables and path != MEMORY and Path(path).stat().st_size <= _CHECKED_BYTES:
            found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        if not tables:
            _run(connection, [_sql("schema.sql"), f"PRAGMA application_id={APPLICATION_ID};"])
        elif version < SCHEMA_VERSION:
            steps = range(version + 1, SCHEMA_VERSION + 1)
            _run(connection, [_sql(f"migrations/{step}.sql") for step in steps])
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def unavailable(path: str, error: sqlite3.Error) -> StoreUnavailableError:
    """The error of a file that cannot be opened, with what to do about it."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        advice = "Check that the file and its folder can be written, and the disk's free space"
    else:
        advice = "The file is damaged and was left as it is; restore a copy, or give a new path"
    return StoreUnavailableError(f"store {path!r}: cannot be opened: {text}. {advice}")


def check_header(path: str) -> None:
    """Refuse a file that is not SQLite's, before SQLite touches it.

    Raises:
        StoreUnavailableError: It is something else, or in a folder that there is not.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise StoreUnavailableError(
            f"store {path!r}: no folder {str(file.parent)!r}; make it, or give another path"
        )
    if not file.exists():
        return
    if not file.is_file():
        raise StoreUnavailableError(f"store {path!r}: not a file; give the path of a file")
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_HEADER))
    except OSError as error:
        raise StoreUnavailableError(
            f"store {path!r}: cannot be read: {error.strerror}; check its permissions"
        ) from error
    if start and start != _HEADER:
        raise StoreUnavailableError(
            f"store {path!r}: not an SQLite database; it was left as it is. "
            "Give the path of a store or of a new file"
        )


def _sql(name: str) -> str:
    return files("agl.store").joinpath(name).read_text("utf-8")


def _run(connection: sqlite3.Connection, scripts: Sequence[str]) -> None:
    """Bring the file to the present version: all of it is committed, or none."""
    script = "\n".join((*scripts, f"PRAGMA user_version={SCHEMA_VERSION};"))
    connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")


class OwnerLock:
    """Holds ``<path>.lock`` for as long as this process owns the store.

    The system gives the lock back when the process dies, however it dies.

    Raises:
        StoreUnavailableError: Another process owns it, or its folder cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = f"{path}.lock"
        while True:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise StoreUnavailableError(
                    f"store {path!r}: cannot make {self._path!r} beside it: {error.strerror}. "
                    "A store needs a folder that can be written; give another path"
                ) from error
            if not _try_lock(self._file):
                owner = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise StoreUnavailableError(
                    f"store {path!r}: in use by process {owner}. Stop that one, or reach its "
                    "store over HTTP with agl.LightningStoreClient"
                )
            if self._is_in_place():
                break
            # Its last owner removed it between our opening and our locking it.
            os.close(self._file)
        os.ftruncate(self._file, 0)
        os.write(self._file, str(os.getpid()).encode())

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the store free."""
        if sys.platform == "win32":  # an open file cannot be removed there
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            _unlock(self._file)
            os.close(self._file)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> bool:
        # Far behind the owner's number, so that others can read that.
        os.lseek(file, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _try_lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        # A forked child holds the same lock; only this frees it for good.
        fcntl.flock(file, fcntl.LOCK_UN)
