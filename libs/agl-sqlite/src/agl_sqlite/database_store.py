"""A store over a database that one thread of the process writes, and others read."""

import asyncio
import time
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from agl.errors import StoreDiskError, StoreUnavailableError
from agl.store.answers import FENCE, RETRY_SECONDS, LightningStoreCapabilities
from agl.store.engine import operations as ops
from agl.store.engine.operations import Outcome
from agl.store.engine.store import EngineStore
from agl.types import AttemptedRollout
from agl_sqlite.writer import Database, Job, Writer, stop_forgotten

T = TypeVar("T")
D = TypeVar("D", bound=Database)

_LONGEST_PAUSE = 1.0


class DatabaseStore(EngineStore, Generic[D]):
    """A store whose operations a ``Writer`` runs, and whose lookups threads that read.

    Args:
        open_database: Called when the other arguments are known to be good; what it opens is closed
            with the store.
        scan_interval_seconds: See ``EngineStore``.
    """

    def __init__(
        self, open_database: Callable[[], D], *, scan_interval_seconds: float = 1.0
    ) -> None:
        super().__init__(scan_interval_seconds=scan_interval_seconds)
        self._database = open_database()
        self.path = self._database.path
        """Where the records are, for people."""
        self._writer = Writer(self._database, self._clock, self._publish)
        # Also at the interpreter's exit, so that a forgotten close() loses nothing.
        self._shutdown = weakref.finalize(self, stop_forgotten, self._writer.stop)
        self._listening_since = self._clock.now()

    @abstractmethod
    def _has_nothing_for(self, worker_id: str | None, key: str | None) -> bool:
        """Whether a claim from an empty queue would change nothing; from any thread, at once."""

    @abstractmethod
    def _write_something(self, tables: Any, now: float) -> None:
        """Write something small, which shows whether the database can be written."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**super().capabilities, "persistent": True}

    async def check_health(self) -> None:
        self._check_usable()
        if self._writer.failing_since is not None:
            # It may work again, and nobody has noticed.
            await self._submit_once(Job(self._write_something))
            self._writer.note_failure(None)

    async def close(self) -> None:
        if self._shutdown.alive:
            await super().close()
            self._shutdown.detach()
            await asyncio.to_thread(self._writer.stop)

    # --- how operations run

    def _write(
        self,
        operation: Callable[[Any, float], T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
    ) -> Coroutine[Any, Any, T]:
        job = Job(operation, claimed_of)
        if RETRY_SECONDS.get() <= 0:  # in a server, where each coroutine counts
            return self._submit_once(job)
        return self._retry(lambda: self._submit_once(job))

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

    async def look_up(self, lookup: Callable[[Any], T]) -> T:
        """Run a lookup in a thread, all of it on one state of the database."""
        return await self._read(lookup)

    def write(self, operation: Callable[[Any, float], T], timeout: float | None = None) -> T:
        """Run an operation in a transaction of its own, from another thread than the writer's."""
        job = Job(operation)
        done = job.bind_to_thread()
        self._writer.submit(job)
        return done.result(timeout)

    async def _read(self, lookup: Callable[[Any], T]) -> T:
        async def look_up() -> T:
            self._check_usable()
            database, loop = self._database, asyncio.get_running_loop()
            return await loop.run_in_executor(database.readers, database.look_up, lookup)

        return await self._retry(look_up)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until it works again, or has failed for ``RETRY_SECONDS`` of this context."""
        end: float | None = None
        pause = 0.1
        while True:
            try:
                return await ask()
            except StoreDiskError:
                now = time.monotonic()
                if end is None:  # one for all calls since it began to fail
                    end = (self._writer.failing_since or now) + RETRY_SECONDS.get()
                if now >= end:
                    raise
            await asyncio.sleep(min(pause, end - now))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        # First the queue: what has left it by then has its key, and a repetition finds that.
        is_idle = not self._has_queued() and self._has_nothing_for(worker_id, key)
        if is_idle and FENCE.get() is None:
            # Nothing to claim is nothing to write: hundreds of idle runners cost no commit.
            self._check_usable()
            return []
        return await super()._claim(limit, worker_id, key)

    def _scan(self) -> None:
        since = self._listening_since
        self.write(lambda tables, now: ops.expire(tables, now, since), 60.0)

    def _check_usable(self) -> None:
        if not self._shutdown.alive or self._closing:
            raise StoreUnavailableError(
                f"store {self._database.path!r}: closed; open it again with {type(self).__name__}"
            )
        self._check_process()
