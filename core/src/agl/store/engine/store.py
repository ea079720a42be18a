"""A store made of ``Tables``: the asynchronous face, waiting, and the watchdog."""

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from agl.errors import ConfigError, StoreUnavailableError
from agl.store import rules
from agl.store.answers import FENCE
from agl.store.base import AttemptEnd, LightningStore, LightningStoreStatistics, Turn
from agl.store.engine import operations as ops, records
from agl.store.engine.reading import ReadingStore
from agl.store.engine.tables import Tables
from agl.store.operation import given, operation
from agl.store.packed_span import AnySpan
from agl.store.queries import check_seconds
from agl.store.waiting import Effects, EndWaiters, QueueWaiters
from agl.store.watchdog import StoreClock, Watchdog
from agl.types import AttemptedRollout, Rollout

T = TypeVar("T")

OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    one.__name__: one
    for one in (
        ops.enqueue_many_rollouts,
        ops.start_rollout,
        ops.start_attempt,
        ops.add_many_spans,
        ops.get_many_span_sequence_ids,
        ops.update_rollout,
        ops.update_attempt,
        records.update_resources,
        records.update_worker,
        records.put_documents,
        records.delete_documents,
        records.delete_rollouts,
    )
}
"""Those that take what the method of the contract is given, by its name."""


class EngineStore(ReadingStore):
    """A store whose subclass says how to write (a transaction), how to read, and who is queued.

    Args:
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.
    """

    def __init__(self, *, scan_interval_seconds: float = 1.0) -> None:
        if not scan_interval_seconds > 0:
            raise ConfigError(
                f"{type(self).__name__}: scan_interval_seconds must be above 0, "
                f"got {scan_interval_seconds!r}"
            )
        self._queue_waiters = QueueWaiters()
        self._end_waiters = EndWaiters()
        self._watchdog = Watchdog(self._scan, scan_interval_seconds)
        self._opened = time.monotonic()
        self._clock = StoreClock()
        self._closing = False
        self._pid = os.getpid()

    # --- what a subclass fills in

    @abstractmethod
    def _write(
        self,
        operation: Callable[[Tables, float], T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
    ) -> Awaitable[T]:
        """Run an operation in a transaction (``run_all``), then give its effects to ``_publish``.

        Args:
            claimed_of: Finds the claims in its result, which go back if the caller is gone.
        """

    @abstractmethod
    def _scan(self) -> None:
        """Run ``operations.expire``, from the watchdog's thread."""

    @abstractmethod
    def _has_queued(self) -> bool:
        """Whether the queue holds something; from any thread, at once."""

    def _check_process(self) -> None:
        """Refuse to work in a fork, on a copy of the records, or on one file with its parent."""
        if os.getpid() != self._pid:
            raise StoreUnavailableError(
                f"{type(self).__name__} was opened by process {self._pid}; this is process "
                f"{os.getpid()}. Reach it over HTTP with agl.LightningStoreClient"
            )

    def _publish(self, effects: Effects) -> None:
        """Wake who waits for this. Called from any thread, outside of any lock."""
        if effects.queued:
            self._queue_waiters.wake(effects.queued)
        if effects.ended:
            self._end_waiters.ended(effects.ended)
        if effects.limits:
            self._watchdog.start()

    async def close(self) -> None:
        self._closing = True
        self._queue_waiters.wake_all()
        self._end_waiters.wake_all()
        await asyncio.to_thread(self._watchdog.stop)

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._read(lambda lookups: lookups.counts())
        return {"name": type(self).__name__, **counts, "uptime": time.monotonic() - self._opened}

    def _change(
        self,
        operation: Callable[[Tables, float], T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
    ) -> Awaitable[T]:
        """Write, unless another writer has taken over from the one who calls."""
        if (fence := FENCE.get()) is None:
            return self._write(operation, claimed_of)

        def fenced(tables: Tables, now: float) -> T:
            records.check_fence(tables, fence)
            return operation(tables, now)

        return self._write(fenced, claimed_of)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Run one of ``OPERATIONS`` with what was given."""
        if (run := OPERATIONS.get(operation)) is None:
            return await super().call(operation, arguments)
        return await self._change(lambda tables, now: run(tables, now, **given(**arguments)))

    # Not made of a turn, as the contract makes it: a subclass may make a turn of its parts.
    add_many_spans = operation(LightningStore.add_many_spans)

    # --- putting work in, taking it out

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        check_seconds("wait_seconds", wait_seconds)
        if limit <= 0:
            return []
        claimed = await self._claim(limit, worker_id, key)
        deadline = time.monotonic() + wait_seconds
        while not claimed and not self._closing and (left := deadline - time.monotonic()) > 0:
            with self._queue_waiters.ticket(self._has_queued) as ticket:
                # Between the last look and the ticket something may have come, or the store closed.
                claimed = await self._claim(limit, worker_id, key)
                if not (claimed or self._closing) and await ticket.wait(left) and not self._closing:
                    claimed = await self._claim(limit, worker_id, key)
        return claimed

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        return await self._change(
            lambda tables, now: ops.claim(tables, now, limit, worker_id, key),
            lambda claimed: claimed,
        )

    # --- a runner's whole turn

    async def turn(
        self,
        spans: Sequence[AnySpan] = (),
        *,
        finish: AttemptEnd | None = None,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Turn:
        """The same, all or nothing; waiting comes after it is stored."""
        check_seconds("wait_seconds", wait_seconds)
        done = await self._change(
            lambda tables, now: ops.turn(tables, now, spans, finish, limit, worker_id, key),
            lambda done: done.claimed,
        )
        if done.claimed or limit <= 0 or wait_seconds <= 0:
            return done
        return done._replace(
            claimed=await self.dequeue_many_rollouts(
                limit=limit, worker_id=worker_id, wait_seconds=wait_seconds, key=key
            )
        )

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_seconds("timeout", timeout)
        wanted = list(rollout_ids)
        with self._end_waiters.ticket(wanted) as ticket:
            found = await self._read(lambda lookups: lookups.views(wanted))
            open_ids = {one.rollout_id for one in found if one.status not in rules.ENDED}
            if open_ids and timeout != 0 and not self._closing:
                self._end_waiters.settle(ticket, set(wanted) - open_ids)
                await ticket.wait(timeout)
            if open_ids and not self._closing:
                found = await self._read(lambda lookups: lookups.views(wanted))
        return [rollout for rollout in found if rollout.status in rules.ENDED]
