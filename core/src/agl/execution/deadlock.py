"""Running an algorithm, and ending it once it is deadlocked: it waits, and no runner is left."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agl.execution.base import AlgorithmBundle
from agl.execution.coroutines import UnaskedCancellationError
from agl.execution.events import ExecutionEvent
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.types import Rollout

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often it is looked whether an algorithm waits in vain."""
AT_ONCE = 0.1
"""A wait goes on with the former one where the pause between them is shorter than this part of the
former one's length: there was no time to work."""
CLEAN_UP_SECONDS = 30.0
"""An algorithm that was cancelled gets so long to end, or the grace where that is longer."""
NAMED = 3
"""How many rollouts a warning names at most."""


async def run_algorithm(
    algorithm: AlgorithmBundle,
    store: LightningStore,
    stop: ExecutionEvent,
    no_runners: ExecutionEvent,
    grace_seconds: Callable[[], float],
) -> bool:
    """Run the algorithm to its own end, or until it has waited in vain for too long.

    It waits in vain while a ``wait_for_rollouts`` of its is open and ``no_runners`` is set.
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
            wait = watched.wait_in_vain()
            if wait is None or task.done():
                continue
            seconds, grace = time.monotonic() - wait.began, grace_seconds()
            if wait.is_endless or seconds >= grace / 2:
                stop.set()
            if seconds >= grace:
                logger.warning(
                    "All runners have ended; the algorithm waits for rollouts that nobody will "
                    "run (%s), and is stopped.",
                    _names(wait.rollout_ids),
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
    """A wait for rollouts, and those right before it for the same."""

    rollout_ids: frozenset[str]
    is_endless: bool
    """It has no timeout, so the algorithm does nothing else until it is cancelled."""
    began: float
    last_began: float
    ended: float | None = None

    def continues(self, former: "_Wait") -> bool:
        """Whether the algorithm did nothing else in between."""
        if former.ended is None or former.rollout_ids != self.rollout_ids:
            return False
        pause, length = self.began - former.ended, former.ended - former.last_began
        return pause < AT_ONCE * length


class _WatchedStore(StandInStore):
    """The algorithm's store, which notes what it waits for in vain."""

    def __init__(self, store: LightningStore, no_runners: ExecutionEvent) -> None:
        super().__init__(store)
        self._no_runners = no_runners
        self._open_waits: list[_Wait] = []
        self._last_wait: _Wait | None = None
        self._none_since: float | None = None

    def wait_in_vain(self) -> _Wait | None:
        """The open wait that has lasted longest; None when none is open, or runners are left."""
        if not self._no_runners.is_set():
            return None
        now = time.monotonic()
        self._none_since = now if self._none_since is None else self._none_since
        for wait in list(self._open_waits):
            wait.began = max(wait.began, self._none_since)
        return min(self._open_waits, key=lambda wait: wait.began, default=None)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        now, wanted = time.monotonic(), list(rollout_ids)
        wait = _Wait(frozenset(wanted), timeout is None, now, now)
        if self._last_wait is not None and wait.continues(self._last_wait):
            wait.began = self._last_wait.began
        self._open_waits.append(wait)
        try:
            return await self._store.wait_for_rollouts(rollout_ids=wanted, timeout=timeout)
        finally:
            self._open_waits.remove(wait)
            wait.ended, self._last_wait = time.monotonic(), wait


def _names(rollout_ids: Iterable[str]) -> str:
    names = sorted(rollout_ids)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
