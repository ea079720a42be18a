"""Running an algorithm, and ending it once it is deadlocked: it waits, and no runner is left."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

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
IN_VAIN = "all runners had ended, and the algorithm waited for rollouts that nobody would run"
"""With this an algorithm is cancelled that waits in vain."""


async def run_algorithm(
    algorithm: AlgorithmBundle,
    store: LightningStore,
    stop: ExecutionEvent,
    no_runners: ExecutionEvent,
    grace_seconds: Callable[[], float],
) -> bool:
    """Run the algorithm to its own end, or until it has waited in vain for too long.

    It waits in vain while a ``wait_for_rollouts`` of its without a timeout is open and
    ``no_runners`` is set. ``stop`` is then set for it, and after the grace it is cancelled with
    ``IN_VAIN``, and left behind if it does not end by that. One whose waits have timeouts goes on,
    with ``stop`` set: it may give up and save, or train in between.

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
    watched = _WatchedStore(store, stop, no_runners)
    task = asyncio.ensure_future(algorithm(watched, stop))
    none_since, why = math.inf, None
    try:
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_SECONDS)
            if task.done() or not no_runners.is_set():
                continue
            none_since = min(none_since, time.monotonic())
            for began, rollout_ids in watched.waits[:1]:
                watched.tell(rollout_ids)
                if time.monotonic() - max(began, none_since) >= grace_seconds():
                    why = IN_VAIN
                    return False
    finally:
        task.cancel(why)
        await asyncio.wait([task], timeout=max(grace_seconds(), CLEAN_UP_SECONDS))
        if not task.done():
            logger.error("The algorithm was cancelled and does not end; it is left behind.")
            asyncio._unregister_task(task)  # asyncio.run waits for all tasks that it knows
        elif not task.cancelled():
            task.result()
    if task.cancelled():
        raise UnaskedCancellationError
    return True


class _WatchedStore(StandInStore):
    """The algorithm's store, which notes what it waits for."""

    def __init__(
        self, store: LightningStore, stop: ExecutionEvent, no_runners: ExecutionEvent
    ) -> None:
        super().__init__(store)
        self._stop, self._no_runners = stop, no_runners
        self.waits: list[tuple[float, Sequence[str]]] = []
        """When the open ones without a timeout began, and what they wait for."""

    def tell(self, rollout_ids: Sequence[str]) -> None:
        """Say once that nobody will run these, and set ``stop``."""
        if not self._stop.is_set():
            logger.warning(
                "All runners have ended; the algorithm waits for rollouts that nobody will run "
                "(%s), and is told to stop.",
                shorten(", ".join(rollout_ids)),
            )
            self._stop.set()

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        wait = time.monotonic(), list(rollout_ids)
        self.waits += [wait] if timeout is None else []
        try:
            ended = await self._store.wait_for_rollouts(rollout_ids=wait[1], timeout=timeout)
        finally:
            if timeout is None:
                self.waits.remove(wait)
        if timeout and len(ended) < len(wait[1]) and self._no_runners.is_set():
            self.tell(wait[1])
        return ended
