"""How long a call waits for a store whose disk is full or fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from agl.errors import StoreDiskError, StoreUnavailableError

T = TypeVar("T")

RETRY_SECONDS: ContextVar[float] = ContextVar("agl_store_retry_seconds", default=60.0)
"""About as long as a client over HTTP asks again. A server sets 0 for what it answers: it says at
once how things are, and its clients decide how long they wait."""

_LONGEST_PAUSE = 1.0


def is_away(error: BaseException) -> bool:
    """Whether it says that the store is gone; one with a full disk may take the next record."""
    return isinstance(error, StoreUnavailableError) and not isinstance(error, StoreDiskError)


async def retry_disk_errors(
    ask: Callable[[], Awaitable[T]], failing_since: Callable[[], float | None] = lambda: None
) -> T:
    """Ask until the disk works again, or ``RETRY_SECONDS`` of this context have passed.

    Args:
        ask: Asks once.
        failing_since: Since when the disk takes nothing, by ``time.monotonic()``: all calls since
            then share one ``RETRY_SECONDS``.

    Raises:
        StoreDiskError: The last answer.
    """
    end: float | None = None
    pause = 0.1
    while True:
        try:
            return await ask()
        except StoreDiskError:
            now = time.monotonic()
            end = (failing_since() or now) + RETRY_SECONDS.get() if end is None else end
            if now >= end:
                raise
        await asyncio.sleep(min(pause, end - now))
        pause = min(2 * pause, _LONGEST_PAUSE)
