"""Writes the records of calls to the store, in the background and in batches."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from agl.errors import StoreError, StoreUnavailableError
from agl.store.base import LightningStore
from agl.store.packed import PackedSpan
from agl_gateway.records import CallRecord

logger = logging.getLogger("agl.gateway")

GATHER_SECONDS = 0.1
"""So long records gather, unless somebody waits for them."""
MAX_BATCH = 256
MAX_PENDING_BYTES = 48 * 2**20
"""Of what was said in calls that the store does not have yet; then further calls wait for it."""
PACKED_AT_ONCE = 8
"""Then calls get their turn: about a millisecond of work."""
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Waits while the store cannot be reached; the last one repeats."""
DRAIN_SECONDS = 10.0
"""How long the end waits for a store that cannot be reached."""


class Recorder:
    """Takes records without waiting, and writes all that are there in one batch.

    While one batch is being written the next one gathers: the busier, the larger. Lives in one
    event loop.

    Args:
        get_store: The store of this moment.
        lost: Attempt id -> how many of its records will never be stored; counted here.
    """

    def __init__(self, get_store: Callable[[], LightningStore], lost: Counter[str]) -> None:
        self.loop = asyncio.get_running_loop()
        self._get_store = get_store
        self._pending: list[CallRecord] = []
        self._wake = asyncio.Event()
        self._is_gathering = False
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
        """Write this record soon."""
        self._pending.append(record)
        self._taken += 1
        self._pending_bytes += record.size
        if not self._is_gathering:
            self._is_gathering = True
            self.loop.call_later(GATHER_SECONDS, self._wake.set)

    async def room(self) -> None:
        """Return when the store is not too far behind.

        Calls come no faster than their records are stored: memory would end before that.
        """
        if self._pending_bytes > MAX_PENDING_BYTES:
            async with self._stored:
                await self._stored.wait_for(lambda: self._pending_bytes <= MAX_PENDING_BYTES)

    async def flush(self) -> None:
        """Return when every record added so far is stored (or was refused by the store)."""
        taken = self._taken
        if self._settled < taken:
            self._wake.set()
            async with self._stored:
                await self._stored.wait_for(lambda: self._settled >= taken)

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
            self._is_gathering = False
            while self._pending:
                batch = self._pending[:MAX_BATCH]
                del self._pending[:MAX_BATCH]
                size = sum(record.size for record in batch)
                await self._write(await _pack(batch))
                async with self._stored:
                    self._settled += len(batch)
                    self._pending_bytes -= size
                    self._stored.notify_all()

    async def _write(self, spans: Sequence[PackedSpan]) -> None:
        failures = 0
        while spans:
            try:
                await self._get_store().turn(spans, limit=0)
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
            else:
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
