"""Writes the records of calls to the store, in the background and in batches."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from agl.errors import StoreError, StoreUnavailableError
from agl.store.base import LightningStore
from agl.store.packed_span import PackedSpan
from agl_gateway.records import CallRecord

logger = logging.getLogger("agl.gateway")

GATHER_SECONDS = 5.0
"""How long a record waits, so that the agent's spans that ended before it are stored first."""
MAX_KNOWN = 65536
MAX_BATCH = 256
MAX_PENDING_BYTES = 48 * 2**20
"""Of what was said in calls that the store does not have yet; then further calls wait for it."""
PACKED_AT_ONCE = 8
"""After so many records, about a millisecond of work, the event loop serves calls."""
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Waits while the store cannot be reached; the last one repeats."""
DRAIN_SECONDS = 10.0
"""How long the end waits for a store that cannot be reached."""


class Spans(msgspec.Struct):
    """What a runner says of spans of an attempt."""

    ended: list[float] | None = None
    """When each of them ended, by ``time.monotonic`` of this process."""
    slack: float = 0.0
    """So much these times may be too late; they are not too early."""


read_spans = msgspec.json.Decoder(Spans).decode


class Recorder:
    """Takes records without waiting, and writes all that are there in one batch.

    While one batch is being written the next one gathers: the busier, the larger. Lives in one
    event loop, and counts in ``lost``, by attempt, records that will never be stored.
    """

    def __init__(self, get_store: Callable[[], LightningStore], lost: Counter[str]) -> None:
        self.loop = asyncio.get_running_loop()
        self._get_store = get_store
        self._gathering: dict[str, list[CallRecord]] = {}
        """Attempt id -> its records in the order of their ends; nobody writes them yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._ready: list[CallRecord] = []
        self._num_ready = 0
        self._last_end: dict[str, float] = {}
        """Attempt id -> when the last of its records that are ready or stored had ended."""
        self._wake = asyncio.Event()
        self._taken = 0
        self._settled = 0
        self._lost = lost
        self._pending_bytes = 0
        self._stored = asyncio.Condition()
        self._task = asyncio.create_task(self._run(), name="agl-gateway-recorder")

    @property
    def num_pending(self) -> int:
        """Records that the store does not have yet."""
        return self._taken - self._settled

    def add(self, record: CallRecord) -> None:
        """Write this record, whose call ends now, soon."""
        record.ended = time.monotonic()
        record.began = record.ended - ((record.end_time or 0.0) - record.start_time)
        record.due = record.ended + GATHER_SECONDS
        self._gathering.setdefault(record.origin.attempt_id, []).append(record)
        self._taken += 1
        self._pending_bytes += record.size
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._make_ready(math.inf)
        elif self._timer is None:
            self._timer = self.loop.call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._make_ready(time.monotonic())
        due = min((records[0].due for records in self._gathering.values()), default=None)
        if due is None:
            self._timer = None
        else:
            self._timer = self.loop.call_later(due - time.monotonic(), self._gathered)

    def _make_ready(self, now: float) -> None:
        for attempt_id, records in list(self._gathering.items()):
            self._take(attempt_id, sum(record.due <= now for record in records))

    def _take(self, attempt_id: str, count: int) -> None:
        """The first of an attempt's records are written next."""
        records = self._gathering.pop(attempt_id, [])
        if records[count:]:
            self._gathering[attempt_id] = records[count:]
        if count:
            self._ready += records[:count]
            self._num_ready += count
            self._last_end[attempt_id] = records[count - 1].ended
            if len(self._last_end) > MAX_KNOWN:  # of runners that end no attempts
                del self._last_end[next(iter(self._last_end))]
            self._wake.set()

    async def room(self) -> None:
        """Return when the store is not too far behind.

        Calls come no faster than their records are stored: memory would end before that.
        """
        if self._pending_bytes > MAX_PENDING_BYTES:
            async with self._stored:
                await self._stored.wait_for(lambda: self._pending_bytes <= MAX_PENDING_BYTES)

    async def flush(self, attempt_id: str | None = None) -> None:
        """Return when every record of an attempt, or of all, is stored (or was refused)."""
        for one in list(self._gathering) if attempt_id is None else [attempt_id]:
            self._take(one, len(self._gathering.get(one, ())))
        await self._settle()

    async def end(self, attempt_id: str) -> None:
        """The same for an attempt that makes no more calls."""
        await self.flush(attempt_id)
        self._last_end.pop(attempt_id, None)

    async def place(self, attempt_id: str, spans: Spans) -> dict[str, object]:
        """Return when the records of the calls that ended before the first span are stored.

        Later ones stay for a while, so that the span can be stored before them.

        Returns:
            What the clock says; how many of the spans come before the next call; and whether their
            place is known: no call that ended after them is stored, and none before may have begun
            after them.
        """
        clock, ended = time.monotonic(), spans.ended
        if ended is None or not attempt_id:
            await self.flush(attempt_id or None)
        if not ended or not attempt_id:
            return {"clock": clock, "before": 0, "in_order": True}
        records = self._gathering.get(attempt_id, [])
        count = sum(record.ended <= ended[0] for record in records)
        later = records[count:]
        self._take(attempt_id, count)
        await self._settle()
        for record in later:
            record.due = time.monotonic() + GATHER_SECONDS
        began = max((record.began for record in records[:count]), default=-math.inf)
        last_end = self._last_end.get(attempt_id, -math.inf)
        in_order = began <= ended[0] - spans.slack and last_end <= ended[0]
        after = (n for n, end in enumerate(ended) if later and end >= later[0].ended)
        return {"clock": clock, "before": next(after, len(ended)), "in_order": in_order}

    async def _settle(self) -> None:
        ready = self._num_ready
        if self._settled < ready:
            async with self._stored:
                await self._stored.wait_for(lambda: self._settled >= ready)

    async def close(self) -> None:
        """Write what is pending and end; what could not be written stays pending."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.flush()
        except TimeoutError:
            logger.error(
                "%d model calls could not be recorded: the store was not reachable for the last "
                "%.0f seconds",
                self.num_pending,
                DRAIN_SECONDS,
            )
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._ready:
                batch = self._ready[:MAX_BATCH]
                del self._ready[:MAX_BATCH]
                size = sum(record.size for record in batch)
                await self._write(await _pack(batch))
                async with self._stored:
                    self._settled += len(batch)
                    self._pending_bytes -= size
                    self._stored.notify_all()

    async def _write(self, spans: Sequence[PackedSpan]) -> None:
        failures = 0
        while True:
            try:
                await self._get_store().turn(spans, limit=0)
                return
            except StoreUnavailableError as error:
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                logger.warning("the store cannot be reached, next try in %.1f s: %s", wait, error)
                await asyncio.sleep(wait)
            except StoreError as error:
                # All or none: one span of an unknown attempt must not cost the others.
                if half := len(spans) // 2:
                    await self._write(spans[:half])
                    await self._write(spans[half:])
                else:
                    (span,) = spans
                    logger.error(
                        "a model call of rollout %r, attempt %r is not recorded: %s",
                        span.rollout_id,
                        span.attempt_id,
                        error,
                    )
                    self._lost[span.attempt_id] += 1
                return
            except Exception:
                logger.exception("%d model calls could not be recorded", len(spans))
                self._lost.update(span.attempt_id for span in spans)
                return


async def _pack(batch: Sequence[CallRecord]) -> list[PackedSpan]:
    spans: list[PackedSpan] = []
    for number, record in enumerate(batch, 1):
        try:
            spans.append(record.pack())
        except Exception as error:
            # Whatever the two sides sent, one call leaves one span.
            logger.warning("a model call cannot be recorded whole: %r", error)
            spans.append(record.without_content(error).pack())
        if number % PACKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return spans
