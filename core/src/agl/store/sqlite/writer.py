"""The one thread that writes an SQLite file, in group commits.

While one commit is on its way to the disk the next operations collect; all that wait are run in the
next transaction. There is no timer: alone, an operation is committed at once. An operation is
acknowledged after its commit.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future as SyncFuture
from itertools import chain
from typing import Any

from agl.errors import StoreUnavailableError
from agl.store.engine import operations as ops
from agl.store.engine.operations import Outcome
from agl.store.overdue import StoreClock
from agl.store.sqlite.file import SCHEMA_VERSION, named
from agl.store.sqlite.tables import SqliteTables
from agl.store.waiting import Effects
from agl.types import AttemptedRollout

logger = logging.getLogger(__name__)

_MAX_BATCH = 512
_CHECKPOINT_BYTES = 16 * 2**20
"""So much written since the last one calls for a checkpoint, beside the writer."""
_RESTART_BYTES = 4 * _CHECKPOINT_BYTES
"""A write-ahead log longer than this is restarted by the writer itself."""
PAGE_BYTES = 8192
QUIET_SECONDS = 10.0
"""A disk that has failed works again when it has taken everything for so long."""

Operation = Callable[[SqliteTables, float], Any]
ClaimedOf = Callable[[Any], Sequence[AttemptedRollout]]


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

    def run(self, tables: SqliteTables, now: float) -> Any:
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


class SqliteWriter:
    """Runs jobs in order, many to a transaction.

    Args:
        path: For messages.
        connection: Used by this thread alone from now on.
        clock: Of the store.
        check_file: Called before each commit; raises when the file is gone.
        publish: Told the effects after each commit.
        checkpoint: Called when a checkpoint is due; sets ``log_bytes`` and ``checkpointed`` when
            it is done.
        stopped: Called last, to close what the thread used.
    """

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        clock: StoreClock,
        check_file: Callable[[], None],
        publish: Callable[[Effects], None],
        checkpoint: Callable[[], None],
        stopped: Callable[[], None],
    ) -> None:
        self.path = path
        self.connection = connection
        self.tables = SqliteTables(connection)
        self.num_queued: int = self.tables.one("num_queued")[0]
        """Rollouts in the queue, as of the last commit."""
        self.log_bytes = 0
        """About the length of the write-ahead log when the last checkpoint began."""
        self.failing: StoreUnavailableError | None = None
        """Why the last commit could not be made, while that is so."""
        self.failing_since: float | None = None
        self._failed_at: float | None = None
        self.checkpointed = threading.Event()
        """Not set while a checkpoint is under way."""
        self.checkpointed.set()
        self._clock = clock
        self._check_file = check_file
        self._publish = publish
        self._checkpoint = checkpoint
        self._stopped = stopped
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.idle: dict[str, float] = {}
        """Worker id -> time of an empty claim that is not written yet."""
        self._idle_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="agl-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; from any thread."""
        self._jobs.put(job)

    def probe(self) -> Job:
        """A job that writes something, and changes nothing."""
        write = f"PRAGMA user_version={SCHEMA_VERSION}"
        return Job(lambda tables, now: tables.connection.execute(write).fetchone())

    def note_idle(self, worker_id: str) -> None:
        """Remember an empty claim; it is written with the next commit."""
        with self._idle_lock:
            self.idle[worker_id] = self._clock.now()

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        # The garbage collector may call from one of the store's own threads; those cannot wait.
        if not threading.current_thread().name.startswith("agl-store"):
            self._thread.join()

    # --- the thread

    def _run(self) -> None:
        batch: list[Job] = []
        try:
            self._work(batch)
        except BaseException as error:
            self._refuse(batch, error)
        self._stopped()

    def _refuse(self, batch: list[Job], error: BaseException) -> None:
        """Fail what waits and what comes until the end: nothing is written any more."""
        logger.critical("store %s: its writer has failed", self.path, exc_info=error)
        why = f"store {self.path!r}: its writer has failed ({error!r}); close it and open it again"
        self.failing = StoreUnavailableError(why)
        for job in chain(batch, iter(self._jobs.get, None)):
            self._deliver([job], [Outcome(None, StoreUnavailableError(why))])

    def _work(self, batch: list[Job]) -> None:
        stopping = False
        while not stopping:
            job = self._jobs.get()
            while True:
                if job is None:
                    stopping = True
                    self._jobs.put(None)  # for who refuses, should this batch fail
                else:
                    batch.append(job)
                if stopping or len(batch) >= _MAX_BATCH:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            if batch or (stopping and self.idle):
                self._commit(batch)
            batch.clear()
            del job

    def _commit(self, batch: list[Job]) -> None:
        with self._idle_lock:
            idle, self.idle = self.idle, {}
        operations: list[Operation] = [job.run for job in batch]
        if idle:
            operations.append(lambda tables, now: ops.found_nothing(tables, now, idle))
        try:
            self._check_file()
            outcomes, effects = ops.run_all(self.tables, operations, self._clock.now)
        except Exception as error:
            if len(operations) == 1 and batch:
                outcomes, effects = [Outcome(None, named(self.path, error))], Effects()
            else:
                with self._idle_lock:
                    self.idle = idle | self.idle
                outcomes, effects = self._one_by_one(batch)
        del outcomes[len(batch) :]
        self._note_failure(outcomes)
        self.num_queued += effects.queued - effects.dequeued
        self._deliver(batch, outcomes)
        self._publish(effects)
        try:
            self._keep_log_short()
        except sqlite3.Error:
            # Nothing is lost: the log only stays longer.
            logger.exception("store %s: checkpoint failed", self.path)

    def _note_failure(self, outcomes: Sequence[Outcome]) -> None:
        """Say in the log when the disk begins to fail, and when it works again.

        A disk that is nearly full takes small records and no large ones.
        """
        errors = (error for _, error in outcomes if isinstance(error, StoreUnavailableError))
        had_failed, self.failing = self.failing, next(errors, None)
        now = time.monotonic()
        is_quiet = self._failed_at is not None and now - self._failed_at >= QUIET_SECONDS
        if self.failing is not None:
            if self._failed_at is None or (is_quiet and had_failed is None):
                logger.error("%s. What failed is tried again for a minute", self.failing)
                self.failing_since = now
            self._failed_at = now
        elif is_quiet:
            self._failed_at = self.failing_since = None
            logger.warning("store %s: records are stored again", self.path)

    def _one_by_one(self, batch: list[Job]) -> tuple[list[Outcome], Effects]:
        """Run each in a transaction of its own, as one of them failed."""
        outcomes: list[Outcome] = []
        effects = Effects()
        for job in batch:
            try:
                self._check_file()
                (outcome,), done = ops.run_all(self.tables, [job.run], self._clock.now)
            except Exception as error:
                outcome, done = Outcome(None, named(self.path, error)), Effects()
            outcomes.append(outcome)
            effects.add(done)
        return outcomes, effects

    # --- outcomes

    def _deliver(self, batch: list[Job], outcomes: Sequence[Outcome]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Job, Outcome]]] = {}
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.loop is None:
                self._settle_all([(job, outcome)])
            else:
                loops.setdefault(job.loop, []).append((job, outcome))
        for loop, settled in loops.items():
            try:
                loop.call_soon_threadsafe(self._settle_all, settled)
            except RuntimeError:
                # That loop is closed: nobody receives these.
                for job, outcome in settled:
                    self.take_back(job, outcome)

    def _settle_all(self, settled: list[tuple[Job, Outcome]]) -> None:
        for job, outcome in settled:
            if job.future is not None and job.future.done():
                self.take_back(job, outcome)
            else:
                self._settle(job, outcome)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        result, error = outcome
        if job.future is None:
            if error is not None:
                logger.error("store %s: could not take a claim back", self.path, exc_info=error)
        elif error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def take_back(self, job: Job, outcome: Outcome) -> None:
        """Give back the claims in a result that nobody received."""
        result, error = outcome
        if job.claimed_of is not None and error is None and result:
            claimed = job.claimed_of(result)
            self.submit(Job(lambda tables, now: ops.return_claims(tables, now, claimed)))

    def _keep_log_short(self) -> None:
        self.tables.written_bytes += 8 * PAGE_BYTES
        written = self.tables.written_bytes
        if self.log_bytes + written > _RESTART_BYTES:
            # The checkpoints beside cannot keep up: wait for one, and let the log begin anew.
            self.checkpointed.wait()
            self.log_bytes = self.tables.written_bytes = 0
            self.connection.execute("PRAGMA wal_checkpoint(RESTART)")
        elif written > _CHECKPOINT_BYTES and self.checkpointed.is_set():
            self.log_bytes += written
            self.tables.written_bytes = 0
            self.checkpointed.clear()
            self._checkpoint()
