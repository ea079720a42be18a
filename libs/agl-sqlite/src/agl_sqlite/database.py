"""A store's file: its lock, which gives it one owner, and the connections to it."""

import contextlib
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agl.errors import AglError, StoreUnavailableError
from agl.store.engine.operations import Outcome, run_all
from agl.store.waiting import Effects
from agl_sqlite.file import named, prepare, unavailable
from agl_sqlite.lockfile import HeldError, LockFile
from agl_sqlite.lookups import SqliteLookups
from agl_sqlite.tables import SqliteTables

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 0.1
"""Between two looks at the file: one for each commit cost a busy server a fifteenth of its time."""
_NUM_READERS = 2
_PAGE_BYTES = 8192
_CHECKPOINT_PAGES = 2048
"""SQLite moves the log into the file when the log has so many pages: 16 MiB."""
_LOG_BYTES = 64 * 2**20
"""A log that grew longer is cut when it begins anew."""


class SqliteDatabase:
    """A file that this process owns until ``close``: one connection to write, some to read.

    Args:
        path: The file, made if it is not there.
        synchronous: As SQLite's ``PRAGMA synchronous``.

    Raises:
        StoreUnavailableError: It cannot be opened as a store; it is left as it was.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        # Without links, and from the root: the process may change its folder later.
        self._file = os.path.realpath(path)
        self._connections: list[sqlite3.Connection] = []
        self._lookups = threading.local()
        self._next_look = 0.0
        self.readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="agl-store-reader")
        self._lock = _own(path, self._file)
        try:
            self.connection = self._connect()
            prepare(self.connection, path)
            for pragma in (
                "journal_mode=WAL",
                f"synchronous={synchronous}",
                f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
                f"journal_size_limit={_LOG_BYTES}",
                "cache_size=-16384",
                "temp_store=MEMORY",
            ):
                self.connection.execute(f"PRAGMA {pragma}")
            _close_to_others(path, self._file)
            self.tables = SqliteTables(self.connection)
            self.has_deadlines = bool(self.tables.one("has_deadlines")[0])
            names = (self._file, f"{self._file}-wal", f"{self._file}.lock")
            self._opened = {name: os.stat(name) for name in names}
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise unavailable(path, error) from error
            raise

    def run(
        self, operations: Sequence[Callable[[Any, float], Any]], now: Callable[[], float]
    ) -> tuple[list[Outcome], Effects]:
        """Run operations in one transaction; see ``run_all``."""
        if (instant := time.monotonic()) >= self._next_look:
            self.check()
            self._next_look = instant + LOOK_SECONDS
        return run_all(self.tables, operations, now)

    def named(self, error: Exception, what: str) -> Exception:
        """See ``file.named``."""
        return named(self.path, error, what)

    def check(self) -> None:
        """Look whether the file, its log and its lock are those that were opened.

        SQLite goes on with a file that was deleted or replaced, and all that is stored then is lost
        with the process; and without its lock another process may own the store.

        Raises:
            StoreUnavailableError: One was deleted or replaced.
        """
        for name, opened in self._opened.items():
            try:
                if os.path.samestat(os.stat(name), opened):
                    continue
                happened = "replaced by another file"
            except OSError as error:
                happened = "deleted" if isinstance(error, FileNotFoundError) else error.strerror
            raise StoreUnavailableError(
                f"store {self.path!r}: {name!r} was {happened} while the store was open, and "
                "nothing more is stored: it could be lost. Stop the process that serves it, put "
                "the file back from a copy or give a new path, and start again"
            )

    def look_up(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """Run a lookup on the connection of this thread, all of it on one state of the file."""
        try:
            lookups: SqliteLookups | None = getattr(self._lookups, "of_thread", None)
            if lookups is None:
                self.check()  # connecting would make a new one
                connection = self._connect()
                connection.execute("PRAGMA query_only=ON")
                lookups = self._lookups.of_thread = SqliteLookups(connection)
            lookups.connection.execute("BEGIN")
            try:
                return lookup(lookups)
            finally:
                lookups.connection.execute("COMMIT")
        except (sqlite3.Error, ValueError) as error:
            if isinstance(error, AglError):
                raise
            raise named(self.path, error, "it could not be read") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        return connection

    def close(self) -> None:
        """Close all connections, and let the next owner have the file."""
        self.readers.shutdown()
        # The connection that writes is the first; as the last to be closed, it tidies the log away.
        for connection in reversed(self._connections):
            connection.close()
        self._lock.release()


def _own(path: str, file: str) -> LockFile:
    """Lock ``<path>.lock`` for as long as this process owns the store, then make the file."""
    if not os.path.isdir(folder := os.path.dirname(file)):
        raise StoreUnavailableError(
            f"store {path!r}: no folder {folder!r}; make it, or give another path"
        )
    try:
        lock = LockFile(f"{file}.lock")
    except HeldError as held:
        raise _in_use(path, str(held)) from None
    except OSError as error:
        raise StoreUnavailableError(
            f"store {path!r}: cannot make '{file}.lock' beside it: {error.strerror}. "
            "A store needs a folder that can be written; give another path"
        ) from error
    try:
        # Before it is opened: with the first file object of a file that is closed, a process loses
        # all locks that SQLite has on it, also by another name.
        if os.path.isfile(file) and (names := os.stat(file).st_nlink) > 1:
            raise StoreUnavailableError(
                f"store {path!r}: the file has {names} names (hard links). SQLite keeps its log "
                "beside one of them only, and opened by another, records are lost. Remove the "
                "other names, or make a copy"
            )
        for end in ("", "-wal", "-shm"):
            # Who only reads a store that cannot be written leaves logs that cannot be either.
            try:
                os.close(os.open(f"{file}{end}", os.O_RDWR | (0 if end else os.O_CREAT), 0o600))
            except OSError as error:
                if end and isinstance(error, FileNotFoundError):
                    continue
                raise StoreUnavailableError(
                    f"store {path!r}: '{file}{end}' cannot be opened for writing: "
                    f"{error.strerror}. Make it writable (chmod u+w), or give another path"
                ) from error
    except BaseException:
        lock.release()
        raise
    return lock


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


def _close_to_others(path: str, file: str) -> None:
    """Take from other users what they may do with a store, as keys may be in it."""
    mode, *_ = [_close_one(name) for name in (file, f"{file}-wal", f"{file}-shm")]
    if mode is not None:
        logger.warning(
            "store %r: other users of this machine could open it (mode %04o), and it may hold "
            "keys; from now on only its owner can",
            path,
            mode,
        )


def _close_one(name: str) -> int | None:
    """The mode that a file of this user had; None if nothing was to be done, or could be.

    By its name: with the first file object of a file that is closed, a process loses all locks that
    SQLite has on it, and who reads the store then would take its log away from this process.
    """
    with contextlib.suppress(OSError, AttributeError):  # no file, or a system that keeps no modes
        found = os.lstat(name)  # another user may have left a link there
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and mode & 0o077:
            os.chmod(name, mode & 0o700)
            return mode
    return None
