"""Running an algorithm, and ending it once it is deadlocked: it waits, and no runner is left."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

    It waits in vain while a ``wait_for_rollouts`` of its is open and ``no_runners`` is set. A wait
    that it begins then has no timeout: it would wait again and again.
    ``stop`` is then set for it, and after the grace it is cancelled, and left behind if it does not
    end by that. One that only asks now and then whether rollouts have ended (``get_rollout_by_id``,
    a wait with ``timeout=0``) goes on: it may train in between, which nobody can tell from a pause.

    Args:
        algorithm: What to run.
        store: Where it works.
        stop: Says that the run ends.
        no_runners: Set when no rollout will be run any more.
        grace_seconds: How long it may wait in vain; asked again each time.

    Returns:
        Whether it came to its own end.

    Raises:
        UnaskedCancellationError: It ended by a ``CancelledError`` that nobody asked for.
    """
    watched = _WatchedStore(store, no_runners)
    task = asyncio.ensure_future(algorithm(watched, stop))
    try:
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_SECONDS)
            found = watched.wait_in_vain()
            if found is None or task.done():
                continue
            (wait, seconds), grace = found, grace_seconds()
            if wait.is_endless or seconds >= grace / 2:
                stop.set()
            if seconds >= grace:
                logger.warning(
                    "All runners have ended; the algorithm waits for rollouts that nobody will "
                    "run (%s), and is stopped.",
                    shorten(", ".join(wait.rollout_ids)),
                )
                return False
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


@dataclass(eq=False)
class _Wait:
    rollout_ids: Sequence[str]
    is_endless: bool
    """It has no timeout, so the algorithm does nothing else until it is cancelled."""
    began: float


class _WatchedStore(StandInStore):
    """The algorithm's store, which notes what it waits for in vain."""

    def __init__(self, store: LightningStore, no_runners: ExecutionEvent) -> None:
        super().__init__(store)
        self._no_runners = no_runners
        self._waits: list[_Wait] = []
        self._none_since = 0.0

    def wait_in_vain(self) -> tuple[_Wait, float] | None:
        """The open wait that has lasted longest, and seconds since no runner is left; or None."""
        if not self._no_runners.is_set():
            return None
        now = time.monotonic()
        self._none_since = self._none_since or now
        return next(((one, now - max(one.began, self._none_since)) for one in self._waits), None)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        if timeout != 0 and self._no_runners.is_set():
            timeout = None  # one that waits again and again waits in vain, too
        wait = _Wait(list(rollout_ids), timeout is None, time.monotonic())
        self._waits.append(wait)
        try:
            return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        finally:
            self._waits.remove(wait)
