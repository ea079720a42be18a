"""What the stores inside this process share: the asynchronous face, waiting, the watchdog."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from agl.errors import ConfigError
from agl.store import rules, run_rules
from agl.store.base import (
    AttemptEnd,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Turn,
)
from agl.store.detached import detached_record
from agl.store.operation_table import Operation, operation_of
from agl.store.overdue import StoreClock, Watchdog
from agl.store.packed import AnySpan
from agl.store.queries import query_of
from agl.store.sqlite import operations as ops
from agl.store.sqlite.lookups import SqliteLookups
from agl.store.waiting import Effects, EndWaiters, QueueWaiters
from agl.types import AttemptedRollout, Rollout
from agl.types.records import Record

T = TypeVar("T")
R = TypeVar("R", bound=Record)

_QUERY_SPANS = operation_of(LightningStore.query_spans)


class LocalLightningStore(LightningStore):
    """A store made of ``Tables``: subclasses say how an operation is run on them.

    Args:
        scan_interval_seconds: How often attempts are checked against ``timeout_seconds`` and
            ``unresponsive_seconds``.
    """

    def __init__(self, *, scan_interval_seconds: float = 1.0) -> None:
        if scan_interval_seconds <= 0:
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

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Any thread and any event loop may call."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    # --- what a subclass fills in

    @abstractmethod
    async def _write(
        self,
        operation: Callable[..., T],
        *args: Any,
        claimed_of: Callable[[T], Sequence[AttemptedRollout]] | None = None,
        **kwargs: Any,
    ) -> T:
        """Run an operation alone, keep what it did, then pass its effects to ``_publish``.

        Args:
            operation: One of ``operations``, which gets the tables and the time first.
            args: What it gets beside these.
            claimed_of: Finds the claims in its result, which go back when the caller is gone.
            kwargs: As ``args``.
        """

    @abstractmethod
    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """Run a lookup; it sees every write that was acknowledged."""

    async def _read_here(self, lookup: Callable[[SqliteLookups], T]) -> T:
        """The same in this thread: what reads a few rows by key takes less than handing it on."""
        return await self._read(lookup)

    async def _write_idle(self) -> None:
        """Write what is known of workers that found nothing, before somebody asks for workers."""

    @abstractmethod
    def _scan(self) -> None:
        """Run ``operations.expire``, from the watchdog's thread."""

    @abstractmethod
    def _has_queued(self) -> bool:
        """Whether the queue holds something; from any thread, at once."""

    async def _claim(
        self, limit: int, worker_id: str | None, key: str | None
    ) -> list[AttemptedRollout]:
        return await self._write(
            ops.claim, limit, worker_id, key, claimed_of=lambda claimed: claimed
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

    async def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """What has no method here is a lookup, or the function of this name in ``operations``."""
        name, arguments = operation.name, operation.complete(arguments)
        if name in ("query_workers", "get_worker_by_id"):
            await self._write_idle()
        if name.startswith("get_") and name != "get_many_span_sequence_ids":  # which gives them out
            lookup = name.removeprefix("get_").removesuffix("_by_id")
            record = await self._read(lambda lookups: getattr(lookups, lookup)(**arguments))
            return None if record is None else detached_record(record)
        if operation.kind is not None:
            query = query_of(operation, arguments)
            return await self._read(
                lambda lookups: getattr(lookups, name)(**arguments, query=query)
            )
        if operation.changes:
            fields = [name for name in arguments if name not in operation.required]
            arguments["changes"] = {name: arguments.pop(name) for name in fields}
        write = getattr(ops, name)
        if (writer := run_rules.WRITER.get()) is not None:
            write = partial(run_rules.written_by, write, writer)
        return await self._write(write, **arguments)

    async def statistics(self) -> LightningStoreStatistics:
        await self._write_idle()
        counts = await self._read(lambda lookups: lookups.counts())
        return {"name": type(self).__name__, **counts, "uptime": time.monotonic() - self._opened}

    # --- putting work in, taking it out

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        if limit <= 0:
            return []
        claimed = await self._claim(limit, worker_id, key)
        deadline = time.monotonic() + wait_seconds
        while not claimed and not self._closing:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            with self._queue_waiters.ticket(self._has_queued) as ticket:
                # Something may have come between the last look and the ticket.
                claimed = await self._claim(limit, worker_id, key)
                if not claimed and await ticket.wait(remaining) and not self._closing:
                    claimed = await self._claim(limit, worker_id, key)
        return claimed

    # --- looking at work

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = await self._read(lambda lookups: lookups.views([rollout_id]))
        return found[0] if found else None

    async def get_rollout_by_id_json(self, rollout_id: str) -> bytes | None:
        """See ``LightningStore``."""
        return await self._read_here(lambda lookups: lookups.rollout_json(rollout_id))

    async def query_spans_json(self, **arguments: Any) -> list[bytes]:
        """See ``LightningStore``; in pieces, as a trace may be long."""
        arguments = _QUERY_SPANS.complete(arguments)
        query = query_of(_QUERY_SPANS, arguments)
        first = partial(SqliteLookups.first_spans, **arguments, query=query)
        found = await self._read_here(partial(first, at_once=True)) or await self._read(first)
        keys, total, (num_read, text) = cast(Any, found)
        pieces = [text]
        while num_read < len(keys):
            await asyncio.sleep(0)  # a store in memory reads in this thread
            some = partial(SqliteLookups.some_spans_json, keys=keys, begin=num_read)
            count, text = await self._read(some)
            pieces.append(b"," + text)
            num_read += count
        end = b'],"limit":%d,"offset":%d,"total":%d}' % (query.limit, query.offset, total)
        return [b'{"items":[', *pieces, end]

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
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
        done = await self._write(
            ops.turn, spans, finish, limit, worker_id, key, claimed_of=lambda done: done.claimed
        )
        if done.claimed or limit <= 0 or wait_seconds <= 0:
            return done
        return done._replace(
            claimed=await self.dequeue_many_rollouts(
                limit=limit, worker_id=worker_id, wait_seconds=wait_seconds, key=key
            )
        )
