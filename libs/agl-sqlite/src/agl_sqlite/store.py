"""The store in one SQLite file: what it acknowledged survives ``kill -9``."""

import asyncio
import os
import sqlite3
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

from agl.errors import ConfigError, StoreDiskError, StoreUnavailableError
from agl.store.answers import FENCE, RETRY_SECONDS, LightningStoreCapabilities
from agl.store.engine import operations as ops
from agl.store.engine.operations import Outcome
from agl.store.engine.store import EngineStore
from agl.types import AttemptedRollout
from agl_sqlite.database import Database
from agl_sqlite.file import SCHEMA_VERSION
from agl_sqlite.lookups import SqliteLookups
from agl_sqlite.tables import SqliteTables
from agl_sqlite.writer import Job, SqliteWriter

T = TypeVar("T")

_LONGEST_PAUSE = 1.0


class SqliteLightningStore(EngineStore):
    """Keeps everything in one file, which one process owns at a time.

    Other processes reach it through ``LightningStoreServer``. The file can be read by any SQLite
    tool; its tables are those of ``schema.sql``.

    Args:
        path: The file, made when it is not there. When it is deleted or replaced while the store is
            open, nothing more is stored.
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
        self.path = os.fspath(path)
        if durability not in ("power", "process"):
            raise ConfigError(
                f"SqliteLightningStore: durability {durability!r}; expected 'power' or 'process'"
            )
        if self.path == ":memory:":
            raise ConfigError(
                "SqliteLightningStore: path ':memory:'; expected the path of a file. "
                "For a store without one use agl.InMemoryLightningStore"
            )
        if sqlite3.sqlite_version_info < (3, 37):
            raise StoreUnavailableError(
                f"SqliteLightningStore needs SQLite 3.37 or newer; this Python has "
                f"{sqlite3.sqlite_version}. Use a newer Python"
            )
        self._database = Database(self.path, "FULL" if durability == "power" else "NORMAL")
        self._writer = SqliteWriter(self._database, self._clock, self._publish)
        # Also at the interpreter's exit, so that a forgotten close() loses nothing.
        self._shutdown = weakref.finalize(self, self._writer.stop)
        self._listening_since = self._clock.now()
        if self._database.has_deadlines:
            self._watchdog.start()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**super().capabilities, "persistent": True}

    async def check_health(self) -> None:
        self._check_usable()
        self._database.check_file()
        if self._writer.failing_since is not None:
            # The disk may have space again and nobody has noticed: write something small.
            write = f"PRAGMA user_version={SCHEMA_VERSION}"
            await self._submit_once(Job(lambda tables, now: tables.connection.execute(write)))
            self._writer.note_failure(None)

    async def close(self) -> None:
        if self._shutdown.alive:
            await super().close()
            await asyncio.to_thread(self._shutdown)

    # --- how operations run

    def _write(
        self,
        operation: Callable[[SqliteTables, float], T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
    ) -> Coroutine[Any, Any, T]:
        job = Job(operation, claimed_of)
        if RETRY_SECONDS.get() <= 0:  # in a server, where each coroutine counts
            return self._submit_once(job)
        return self._retry(lambda: self._submit_once(job))

    async def restore(self, operation: Callable[[SqliteTables, float], T]) -> T:
        """Put what another file held into the tables as it was; open the store anew afterwards."""
        return await self._write(operation)

    async def _submit_once(self, job: Job) -> Any:
        self._check_usable()
        future = job.bind_to_running_loop()
        self._writer.submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._writer.take_back(job, Outcome(future.result()))
            raise

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        async def look_up() -> T:
            self._check_usable()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._database.readers, self._database.look_up, lookup
            )

        return await self._retry(look_up)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the disk works again, or has failed for ``RETRY_SECONDS`` of this context."""
        end: float | None = None
        pause = 0.1
        while True:
            try:
                return await ask()
            except StoreDiskError:
                now = time.monotonic()
                if end is None:  # one for all calls since the disk began to fail
                    end = (self._writer.failing_since or now) + RETRY_SECONDS.get()
                if now >= end:
                    raise
            await asyncio.sleep(min(pause, end - now))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        # First the queue: what has left it by then has its key, and a repetition finds that.
        is_idle = not self._has_queued() and self._database.tables.has_nothing_for(worker_id, key)
        if is_idle and FENCE.get() is None:
            # Nothing to claim is nothing to write: hundreds of idle runners cost no commit.
            self._check_usable()
            return []
        return await super()._claim(limit, worker_id, key)

    def _has_queued(self) -> bool:
        return self._database.tables.num_queued > 0

    def _scan(self) -> None:
        since = self._listening_since
        job = Job(lambda tables, now: ops.expire(tables, now, since))
        done = job.bind_to_thread()
        self._writer.submit(job)
        done.result(60.0)

    def _check_usable(self) -> None:
        if not self._shutdown.alive or self._closing:
            raise StoreUnavailableError(
                f"store {self.path!r}: closed; open it again with SqliteLightningStore"
            )
        self._check_process()
