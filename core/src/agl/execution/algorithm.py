"""Running an algorithm whose waits end once no runner is left to run the rollouts."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from agl.errors import RunnerCrashError
from agl.execution.base import AlgorithmBundle, ExecutionEvent
from agl.execution.coroutines import UnaskedCancellationError
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.types import Rollout
from agl.utils.text import shorten

logger = logging.getLogger(__name__)


async def run_algorithm(
    algorithm: AlgorithmBundle,
    store: LightningStore,
    stop: ExecutionEvent,
    no_runners: ExecutionEvent,
) -> bool:
    """Run the algorithm; its waits for rollouts that nobody will run end with an error.

    Once ``no_runners`` is set, a wait for rollouts that have not ended sets ``stop`` and raises
    ``RunnerCrashError``. An algorithm that computes, or looks with ``timeout=0``, goes on.

    Args:
        no_runners: Set when no rollout will be run any more, at the run's end at the latest.

    Returns:
        Whether the algorithm came to its own end; if not, it failed after such a wait.

    Raises:
        UnaskedCancellationError: The algorithm raised a ``CancelledError`` that nobody asked for.
    """
    waiting = _WaitingStore(store, stop, no_runners)
    threading.Thread(target=waiting.end_waits, name="agl-no-runners", daemon=True).start()
    try:
        await algorithm(waiting, stop)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise UnaskedCancellationError from None
    except Exception as error:
        if not waiting.was_in_vain:
            raise
        logger.warning("All runners have ended, and so has the algorithm: %r", error)
        return False
    return True


class _WaitingStore(StandInStore):
    """The algorithm's store, in which nobody waits once no runner is left."""

    was_in_vain = False
    """Whether a wait has raised."""

    def __init__(
        self, store: LightningStore, stop: ExecutionEvent, no_runners: ExecutionEvent
    ) -> None:
        super().__init__(store)
        self._stop, self._no_runners = stop, no_runners
        self._waits: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        """Of each open wait: what ends it, and the loop on which it waits."""

    def end_waits(self) -> None:
        """End all waits when no runner is left; returns then."""
        self._no_runners.wait()
        for end, loop in list(self._waits.items()):
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(end.set)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        wait = self._store.wait_for_rollouts
        if timeout == 0:
            return await wait(rollout_ids=rollout_ids, timeout=0)
        end = asyncio.Event()
        self._waits[end] = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(wait(rollout_ids=rollout_ids, timeout=timeout))
        ending = asyncio.ensure_future(end.wait())
        try:
            if not self._no_runners.is_set():
                await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        finally:
            del self._waits[end]
            waiting.cancel()
            ending.cancel()
        ended = await wait(rollout_ids=rollout_ids, timeout=0)
        if missing := set(rollout_ids) - {rollout.rollout_id for rollout in ended}:
            self.was_in_vain = True
            self._stop.set()  # an algorithm may wait in a task, and look at the event
            raise RunnerCrashError(
                "no runner is left to run the rollouts that the algorithm waits for: "
                f"{shorten(', '.join(sorted(missing)))}. If max_rollouts ended them, raise it"
            )
        return ended
