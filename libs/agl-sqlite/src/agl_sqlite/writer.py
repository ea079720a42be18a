"""The one thread that writes a database, in group commits.

While one commit is on its way to the disk the next operations collect; all that wait are run in the
next transaction. There is no timer: alone, an operation is committed at once. An operation is
acknowledged after its commit.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future as SyncFuture, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from agl.errors import StoreDiskError, StoreUnavailableError
from agl.store import rules
from agl.store.engine import steps
from agl.store.engine.operations import Outcome
from agl.store.engine.tables import Tables
from agl.store.waiting import Effects
from agl.store.watchdog import StoreClock
from agl.types import AttemptedRollout

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MAX_BATCH = 512
FORGOTTEN_SECONDS = 1.0

Operation = Callable[[Any, float], Any]
ClaimedOf = Callable[[Any], Sequence[AttemptedRollout]]


class Database(Protocol):
    """What a writer writes, and readers read."""

    path: str
    readers: ThreadPoolExecutor

    @property
    def tables(self) -> Tables: ...
    def run(
        self, operations: Sequence[Operation], now: Callable[[], float]
    ) -> tuple[list[Outcome], Effects]:
        """Run operations in one transaction; see ``run_all``."""
        ...

    def named(self, error: Exception, what: str) -> Exception:
        """An error of an operation in our words, with what became of its call."""
        ...

    def look_up(self, lookup: Callable[[Any], T]) -> T:
        """Run a lookup in a thread of ``readers``, all of it on one state of the database."""
        ...

    def close(self) -> None: ...


class Job:
    """An operation that waits for its commit, and where its outcome goes.

    Args:
        operation: What to run.
        claimed_of: Finds the claims in a result. They are given back when nobody is there to
            receive it, and the job is not run at all once its caller is gone.
    """

    __slots__ = ("claimed_of", "future", "loop", "operation")

    def __init__(self, operation: Operation, claimed_of: ClaimedOf | None = None) -> None:
        self.operation = operation
        self.claimed_of = claimed_of
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | SyncFuture[Any] | None = None

    def run(self, tables: Any, now: float) -> Any:
        """Run the operation, unless it claims and its caller is gone."""
        if self.claimed_of is not None and self.future is not None and self.future.cancelled():
            return None
        return self.operation(tables, now)

    def bind_to_thread(self) -> "SyncFuture[Any]":
        """Deliver to a thread that waits."""
        self.future = future = SyncFuture[Any]()
        return future

    def bind_to_running_loop(self) -> "asyncio.Future[Any]":
        """Deliver to the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.future = future = self.loop.create_future()
        return future


def stop_forgotten(stop: Callable[[float | None], None]) -> None:
    """Stop a thread of a store that nobody closed, and wait for it.

    The garbage collector calls this in the middle of anything, with locks held that the thread may
    need to end, as that of ``threading.enumerate``. So the wait has a limit; only at the process's
    exit, where no other code runs and what was submitted would be lost, it has none.
    """
    stop(FORGOTTEN_SECONDS if threading.main_thread().is_alive() else None)


class Writer:
    """Runs jobs in order, many to a transaction.

    Args:
        database: Closed when the thread ends.
        clock: Of the store.
        publish: A bound method, told the effects after each commit; the thread does not keep its
            object alive.
    """

    def __init__(
        self, database: Database, clock: StoreClock, publish: Callable[[Effects], None]
    ) -> None:
        self.failing_since: float | None = None
        """Since when the disk fails, by ``time.monotonic()``; None if it took the last commit."""
        self._database = database
        self._clock = clock
        self._publish = weakref.WeakMethod(publish)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agl-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; from any thread."""
        self._jobs.put(job)

    def stop(self, seconds: float | None = None) -> None:
        """Finish what was submitted, close the database, end the thread; wait for it so long."""
        self._jobs.put(None)
        # The garbage collector may call from one of the store's own threads; those cannot wait.
        if not threading.current_thread().name.startswith("agl-store"):
            self._thread.join(seconds)

    # --- the thread

    def _run(self) -> None:
        while self._work(self._next_jobs()):
            pass
        self._database.close()

    def _next_jobs(self) -> list[Job | None]:
        """Wait for a job; it, and those behind it. None is the end."""
        jobs = [self._jobs.get()]
        with contextlib.suppress(queue.Empty):
            while jobs[-1] is not None and len(jobs) < _MAX_BATCH:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _work(self, jobs: list[Job | None]) -> bool:
        """Commit jobs; whether to go on."""
        if batch := [job for job in jobs if job is not None]:
            self._commit(batch)
        return jobs[-1] is not None

    def _commit(self, batch: list[Job]) -> None:
        before = self._database.tables.num_changes
        try:
            outcomes, effects = self._database.run([job.run for job in batch], self._clock.now)
        except Exception as error:
            # Else it may be stored, and nobody knows: again would be twice.
            if len(batch) > 1 and type(error) is not StoreUnavailableError:
                for job in batch:  # one of them failed, or was refused late: each on its own
                    self._commit([job])
                return
            found = self._database.named(error, "nothing of this call was stored")
            outcomes, effects = [Outcome(None, found)] * len(batch), Effects()
        error = outcomes[0].error
        # Who wrote nothing, as the watchdog mostly does, has not learnt that the disk works.
        if isinstance(error, StoreDiskError) or self._database.tables.num_changes != before:
            self.note_failure(error)
        self._deliver(batch, outcomes)
        try:
            if (publish := self._publish()) is not None:
                publish(effects)
        except Exception:  # a thread that cannot start, say; all is stored
            logger.exception("store %s: who waits could not be woken", self._database.path)

    def note_failure(self, error: Exception | None) -> None:
        """Say in the log when the disk begins to fail, and when it works again.

        Args:
            error: Of the first of a batch: if that fails by the disk, it is alone.
        """
        if isinstance(error, StoreDiskError):
            if self.failing_since is None:
                self.failing_since = time.monotonic()
                logger.error("%s. What failed is tried again for a minute", error)
        elif self.failing_since is not None:
            self.failing_since = None
            logger.warning("store %s: records are stored again", self._database.path)

    # --- outcomes

    def _deliver(self, batch: list[Job], outcomes: Sequence[Outcome]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Job, Outcome]]] = {}
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.loop is None:
                self._settle([(job, outcome)])
            else:
                loops.setdefault(job.loop, []).append((job, outcome))
        for loop, settled in loops.items():
            try:
                loop.call_soon_threadsafe(self._settle, settled)
            except RuntimeError:  # the loop is closed: nobody receives these
                for job, outcome in settled:
                    self.take_back(job, outcome)

    def _settle(self, settled: list[tuple[Job, Outcome]]) -> None:
        for job, outcome in settled:
            result, error = outcome
            if job.future is None:
                if error is not None:
                    logger.error("a claim could not be taken back", exc_info=error)
            elif job.future.done():
                self.take_back(job, outcome)
            elif error is not None:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)

    def take_back(self, job: Job, outcome: Outcome) -> None:
        """Give back the claims in a result that nobody received."""
        result, error = outcome
        if job.claimed_of is not None and error is None and result:
            claimed = job.claimed_of(result)
            self.submit(Job(lambda tables, now: return_claims(tables, now, claimed)))


def return_claims(tables: Tables, now: float, claimed: Sequence[AttemptedRollout]) -> None:
    """Put back what was claimed by a call that nobody waits for any more."""
    for view in claimed:
        if tables.latest_attempt(view.rollout_id) == view.attempt:
            steps.requeue(tables, now, view.rollout_id, rules.CLAIM_ABANDONED)
