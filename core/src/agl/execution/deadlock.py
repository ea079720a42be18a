"""Running an algorithm, and ending it once it is deadlocked: it waits, and no runner is left."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agl.execution.base import AlgorithmBundle
from agl.execution.coroutines import UnaskedCancellationError
from agl.execution.events import ExecutionEvent
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.types import Rollout
from agl.utils.text import shorten

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often it is looked whether an algorithm waits in vain."""
CLEAN_UP_SECONDS = 30.0
"""An algorithm that was cancelled gets so long to end, or the grace where that is longer."""


async def run_algorithm(
    algorithm: AlgorithmBundle,
    store: LightningStore,
    stop: ExecutionEvent,
    no_runners: ExecutionEvent,
    grace_seconds: Callable[[], float],
) -> bool:
    """Run the algorithm to its own end, or until it has waited in vain for too long.

    It waits in vain while a ``wait_for_rollouts`` of its is open and ``no_runners`` is set. Then
    ``stop`` is set. A wait with a timeout ends early once such waits have lasted half the grace
    together; after the whole grace the algorithm is cancelled, and left behind if it does not end
    by that. One that only looks (``get_rollout_by_id``, ``timeout=0``) goes on: it may train.

    Args:
        algorithm: What to run, with ``store`` and ``stop``.
        no_runners: Set when no rollout will be run any more.
        grace_seconds: How long it may wait in vain; asked again each time.

    Returns:
        Whether it came to its own end.

    Raises:
        UnaskedCancellationError: It ended by a ``CancelledError`` that nobody asked for.
    """
    watched = _WatchedStore(store, no_runners)
    task = asyncio.ensure_future(algorithm(watched, stop))
    seconds, looked = 0.0, math.inf
    try:
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_SECONDS)
            wait, now = watched.wait_in_vain(), time.monotonic()
            seconds += max(0.0, now - looked)
            looked = now if wait else math.inf
            if wait is None or task.done():
                continue
            stop.set()
            if seconds >= grace_seconds():
                logger.warning(
                    "All runners have ended; the algorithm waits for rollouts that nobody will "
                    "run (%s), and is stopped.",
                    shorten(", ".join(wait.rollout_ids)),
                )
                return False
            if seconds >= grace_seconds() / 2:
                watched.end_early()
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=max(grace_seconds(), CLEAN_UP_SECONDS))
        if not task.done():
            logger.error("The algorithm was cancelled and does not end; it is left behind.")
            asyncio._unregister_task(task)  # asyncio.run waits for all tasks that it knows
        elif not task.cancelled():
            task.result()
    if task.cancelled():
        raise UnaskedCancellationError
    return True


class _Wait(NamedTuple):
    rollout_ids: Sequence[str]
    timeout: float | None
    limit: asyncio.Timeout
    loop: asyncio.AbstractEventLoop


class _WatchedStore(StandInStore):
    """The algorithm's store, which notes what it waits for in vain."""

    def __init__(self, store: LightningStore, no_runners: ExecutionEvent) -> None:
        super().__init__(store)
        self._no_runners = no_runners
        self._waits: list[_Wait] = []

    def wait_in_vain(self) -> _Wait | None:
        """The open wait that has lasted longest; None if none is open, or runners are left."""
        waits = self._waits if self._no_runners.is_set() else ()
        return next((wait for wait in waits if wait.timeout != 0), None)

    def end_early(self) -> None:
        """End waits that have timeouts as if these were over; by their loops, if still open."""
        for wait in [one for one in self._waits if one.timeout]:
            with contextlib.suppress(RuntimeError):
                wait.loop.call_soon_threadsafe(self._end, wait)

    def _end(self, wait: _Wait) -> None:
        if wait in self._waits and wait.limit.when() is None:
            wait.limit.reschedule(0.0)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()
        self._waits.append(wait := _Wait(rollout_ids, timeout, limit, loop))
        try:
            async with limit:
                return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        except TimeoutError:
            if not limit.expired():
                raise
            return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        finally:
            self._waits.remove(wait)
