"""The store in one SQLite file: what it acknowledged survives ``kill -9``."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from agl.errors import AglError, ConfigError, StoreUnavailableError
from agl.store.answers import LightningStoreStatistics
from agl.store.engine import operations as ops
from agl.store.engine.operations import Outcome
from agl.store.overdue import StoreClock
from agl.store.retry import RETRY_SECONDS, retry_disk_errors
from agl.store.sqlite.file import (
    MEMORY,
    OpenedFile,
    close_store_to_others,
    failure_of,
    own,
    prepare,
    unavailable,
    unreadable,
)
from agl.store.sqlite.json_answers import JsonAnswers
from agl.store.sqlite.lookups import SQL, SqliteLookups
from agl.store.sqlite.tables import SqliteTables
from agl.store.sqlite.writer import PAGE_BYTES, Job, SqliteWriter
from agl.store.waiting import Effects
from agl.types import AttemptedRollout, PaginatedResult, Worker
from agl.utils.lockfile import LockFile

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NUM_READERS = 2


class SqliteLightningStore(JsonAnswers):
    """Keeps everything in one file, which one process owns at a time.

    Other processes reach it through ``LightningStoreServer``. The file can be read by any SQLite
    tool; its tables are those of ``store/sqlite/schema.sql``.

    Args:
        path: The file, made when it is not there; ``:memory:`` for none. When it is deleted or
            replaced while the store is open, nothing more is stored.
        durability: ``power``: what was acknowledged survives a power failure too (each commit is
            synced to the disk). ``process``: it survives the end of the process, however that ends,
            and a power failure may cost the newest part; about twice as fast.
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.

    A call that fails because the disk is full, or fails itself, is made again for a minute (a
    server answers 503 at once, and its clients ask again for about as long); then it raises a
    ``StoreDiskError``.

    Raises:
        StoreUnavailableError: The file cannot be opened as a store; it is left as it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["power", "process"] = "power",
        scan_interval_seconds: float = 1.0,
    ) -> None:
        super().__init__(scan_interval_seconds=scan_interval_seconds)
        if durability not in ("power", "process"):
            raise ConfigError(
                f"SqliteLightningStore: durability {durability!r}; expected 'power' or 'process'"
            )
        if sqlite3.sqlite_version_info < (3, 37):
            raise StoreUnavailableError(
                f"SqliteLightningStore needs SQLite 3.37 or newer; this Python has "
                f"{sqlite3.sqlite_version}. Use a newer Python"
            )
        self.path = os.fspath(path)
        self._pid = os.getpid()
        synchronous = "FULL" if durability == "power" else "NORMAL"
        self._parts = _Parts(self.path, synchronous, self._clock, self._publish)
        # Also at the interpreter's exit, so that a forgotten close() loses nothing.
        self._shutdown = weakref.finalize(self, self._parts.shutdown)
        self._listening_since = self._clock.now()
        if self._parts.has_deadlines:
            self._watchdog.start()

    async def check_health(self) -> None:
        self._check_usable()
        self._parts.check_file()
        if self._parts.writer.failing is not None:
            # The disk may have space again and nobody has noticed: write something small.
            await self._submit_once(self._parts.writer.probe())

    async def close(self) -> None:
        if not self._shutdown.alive:
            return
        await super().close()
        await asyncio.to_thread(self._shutdown)

    # --- how operations run

    def _write(
        self,
        operation: Callable[[SqliteTables, float], T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
    ) -> Coroutine[Any, Any, T]:
        return self._submit(Job(operation, claimed_of))

    def _submit(self, job: Job) -> Coroutine[Any, Any, Any]:
        if RETRY_SECONDS.get() <= 0:  # in a server, where each coroutine counts
            return self._submit_once(job)
        writer = self._parts.writer
        return retry_disk_errors(lambda: self._submit_once(job), lambda: writer.failing_since)

    async def _submit_once(self, job: Job) -> Any:
        self._check_usable()
        future = job.bind_to_running_loop()
        self._parts.writer.submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._parts.writer.take_back(job, Outcome(future.result()))
            raise

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        if self.path == MEMORY:
            return await self._submit(Job(lambda tables, now: lookup(tables)))
        loop = asyncio.get_running_loop()

        async def look_up() -> T:
            self._check_usable()
            return await loop.run_in_executor(self._parts.readers, self._parts.look_up, lookup)

        return await retry_disk_errors(look_up)

    async def _read_here(self, lookup: Callable[[SqliteLookups], T]) -> T:
        if self.path == MEMORY:
            return await self._read(lookup)

        async def look_up() -> T:
            self._check_usable()
            return self._parts.look_up_here(lookup)

        return await retry_disk_errors(look_up)

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        # First the queue: what has left it by then has its key, and a repetition finds that.
        if not self._has_queued() and key not in self._parts.writer.tables.claim_keys:
            # Nothing to claim is nothing to write: hundreds of idle runners cost no commit.
            self._check_usable()
            if worker_id is not None:
                self._parts.writer.note_idle(worker_id)
            return []
        return await super()._claim(limit, worker_id, key)

    def _has_queued(self) -> bool:
        return self._parts.writer.num_queued > 0

    def _scan(self) -> None:
        job = Job(lambda tables, now: ops.expire(tables, now, self._listening_since))
        done = job.bind_to_thread()
        self._parts.writer.submit(job)
        done.result(60.0)

    def _check_usable(self) -> None:
        if not self._shutdown.alive or self._closing:
            raise StoreUnavailableError(
                f"store {self.path!r}: closed; open it again with SqliteLightningStore"
            )
        if os.getpid() != self._pid:
            raise StoreUnavailableError(
                f"store {self.path!r}: opened by process {self._pid}; this is process "
                f"{os.getpid()}. Reach it over HTTP with agl.LightningStoreClient"
            )

    async def _write_idle(self) -> None:  # belongs to what is answered about workers
        if self._parts.writer.idle:
            await self._submit(Job(lambda tables, now: None))

    async def query_workers(self, **filters: Any) -> PaginatedResult[Worker]:
        await self._write_idle()
        return await super().query_workers(**filters)

    async def statistics(self) -> LightningStoreStatistics:
        await self._write_idle()
        return await super().statistics()


class _Parts:
    """The connections, threads and lock behind a store; nothing in here holds the store itself."""

    def __init__(
        self,
        path: str,
        synchronous: str,
        clock: StoreClock,
        publish: Callable[[Effects], None],
    ) -> None:
        self.path = path
        self._local = threading.local()
        self._here, self._here_lock = SimpleNamespace(), threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._lock: LockFile | None = None
        self._opened: OpenedFile | None = None
        # Without links, and from the root: the process may change its folder later.
        self._file = path if path == MEMORY else os.path.realpath(path)
        self.readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="agl-store-reader")
        self._checkpointer = ThreadPoolExecutor(1, thread_name_prefix="agl-store-checkpoint")
        publish_to_store = weakref.WeakMethod(publish)
        if path != MEMORY:
            self._lock = own(path)
        try:
            connection = self._connect()
            prepare(connection, path)
            for pragma in (
                "journal_mode=WAL",
                f"synchronous={synchronous}",
                "wal_autocheckpoint=0",
                "cache_size=-16384",
                f"journal_size_limit={64 * 2**20}",
                "temp_store=MEMORY",
            ):
                connection.execute(f"PRAGMA {pragma}")
            self.has_deadlines = bool(connection.execute(SQL["has_deadlines"]).fetchone()[0])
            if path != MEMORY:
                close_store_to_others(path)
                self._opened = OpenedFile(path)
            self.writer = SqliteWriter(
                path,
                connection,
                clock,
                check_file=self.check_file,
                publish=lambda effects: _call(publish_to_store, effects),
                checkpoint=self._checkpoint_soon,
                stopped=self._release,
            )
        except BaseException as error:
            self._release()
            if isinstance(error, sqlite3.Error):
                raise unavailable(path, error) from error
            raise

    def check_file(self) -> None:
        """Look whether the file is still there; see ``OpenedFile``."""
        if self._opened is not None:
            self._opened.check()

    def look_up(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """Run a lookup on this thread's connection, all of it on one state of the file."""
        return self._look_up(self._local, lookup)

    def look_up_here(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """The same on one connection for all threads that are not the store's."""
        with self._here_lock:
            return self._look_up(self._here, lookup)

    def _look_up(self, place: Any, lookup: Callable[[SqliteLookups], T]) -> T:
        lookups: SqliteLookups | None = getattr(place, "lookups", None)
        try:
            if lookups is None:
                self.check_file()  # connecting would make a new one
                connection = self._connect()
                connection.execute("PRAGMA query_only=ON")
                lookups = place.lookups = SqliteLookups(connection)
            lookups.connection.execute("BEGIN")
            try:
                return lookup(lookups)
            finally:
                lookups.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise failure_of(self.path, error, "it could not be read") from error
        except ValueError as error:
            if isinstance(error, AglError):
                raise
            raise unreadable(self.path, error) from error

    def shutdown(self) -> None:
        """Commit what was submitted, then close everything."""
        self.writer.stop()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        return connection

    def _checkpoint_soon(self) -> None:
        try:
            self._checkpointer.submit(self._checkpoint)
        except RuntimeError:
            # The interpreter ends; closing the file checkpoints it as well.
            self.writer.checkpointed.set()

    def _checkpoint(self) -> None:
        try:
            self.check_file()  # connecting would make a new one
            connection = sqlite3.connect(self._file, timeout=5.0, isolation_level=None)
            with contextlib.closing(connection):
                row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self.writer.log_bytes = row[1] * PAGE_BYTES
        except (sqlite3.Error, StoreUnavailableError):
            # Nothing is lost: the log stays longer until the next one.
            logger.exception("store %s: checkpoint failed", self.path)
        finally:
            self.writer.checkpointed.set()

    def _release(self) -> None:
        self.readers.shutdown()
        self._checkpointer.shutdown()
        # The writer's connection is the first; as the last to be closed, it tidies the log away.
        with self._here_lock:
            for connection in reversed(self._connections):
                connection.close()
        if self._lock is not None:
            self._lock.release()


def _call(method: "weakref.WeakMethod[Callable[[Effects], None]]", effects: Effects) -> None:
    bound = method()
    if bound is not None:
        bound(effects)
