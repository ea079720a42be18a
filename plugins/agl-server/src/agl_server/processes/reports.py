"""What the supervisor of the runners reports, and what follows for the store."""

import asyncio
import contextlib
import logging
from typing import Any

from agl.errors import (
    AglError,
    InvalidTransitionError,
    NotAllowedError,
    RunnerCrashError,
    StoreError,
)
from agl.execution.events import ThreadingEvent
from agl.store.base import LightningStore
from agl.store.retry import is_away
from agl.types import Failure
from agl.utils.workers import worker_name
from agl_server.processes.supervisor import AllEnded, Report, RunnerDied

logger = logging.getLogger("agl.server")

AGAIN_SECONDS = 1.0
"""After so long, a store that could not write what was lost is told once more."""


class Reports:
    """Reports of the supervisor's reader thread, brought to the running loop.

    Args:
        last_seconds: How long ``handle_rest`` may take; None for no limit.
    """

    def __init__(self, last_seconds: float | None) -> None:
        self._last_seconds = last_seconds
        self.no_runners = ThreadingEvent()
        """Set when no runner is left."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[Report] = asyncio.Queue()
        self._again: list[RunnerDied] = []
        """Those of whom the store could not note what they left."""
        self._why_gone: str | None = None
        """Why runners are missing, if not each ended in its order."""

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def deliver(self, report: Report) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, report)

    async def next_or(self, other: "asyncio.Future[Any]") -> Report | None:
        """The next report, or None when ``other`` is done first."""
        getter = asyncio.ensure_future(self._queue.get())
        await asyncio.wait([getter, other], return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            return getter.result()
        getter.cancel()
        return None

    async def handle(self, report: Report | None, store: LightningStore) -> None:
        """Do what follows from a report: mark what a dead runner leaves, say that none is left.

        Raises:
            RunnerCrashError: It died because the store is away; that was waited for already.
            StoreUnavailableError: The same, found out here.
        """
        if isinstance(report, AllEnded):
            self._why_gone = report.because or self._why_gone
            self.no_runners.set()
        if not isinstance(report, RunnerDied):
            return
        message = f"runner {report.worker_id}: {report.message}"
        if report.store_away:
            raise RunnerCrashError(message)
        if report.given_up:
            self._why_gone = message
        try:
            await mark_lost(store, report)
        except NotAllowedError as error:  # a token of a runner ends what it claimed itself
            logger.warning(
                "What runner %d left stays open until its unresponsive_seconds; with an admin's "
                "AGL_SERVER_TOKEN on this machine it would be ended at once: %s",
                report.worker_id,
                error,
            )
        except StoreError as error:  # a full disk, say: once more when there may be space
            if is_away(error):
                raise
            logger.warning("What runner %d left cannot be noted yet: %s", report.worker_id, error)
            self._again.append(report)
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._repeat)

    async def handle_rest(self, store: LightningStore) -> None:
        """Mark what was lost in the last moments, if the store is still there."""
        await asyncio.sleep(0)  # let what ``deliver`` scheduled arrive
        self._repeat()
        reports = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        # Beside each other: a store that makes one wait makes all wait, and for the same thing.
        marks = [mark_lost(store, one) for one in reports if isinstance(one, RunnerDied)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._last_seconds):
                for error in await asyncio.gather(*marks, return_exceptions=True):
                    if isinstance(error, AglError):
                        logger.warning("What a runner left could not be noted: %s", error)
                    elif error is not None:
                        raise error

    def _repeat(self) -> None:
        again, self._again = self._again, []
        for died in again:
            self._queue.put_nowait(died)

    def raise_if_given_up(self) -> None:
        """Say that the runners are gone, if they did not end in order.

        Raises:
            RunnerCrashError: With what ended them.
        """
        if self._why_gone is not None:
            raise RunnerCrashError(f"no runner is left; {self._why_gone}")


async def mark_lost(store: LightningStore, died: RunnerDied) -> None:
    """Give every unfinished attempt of a dead runner the status ``unresponsive`` and a reason."""
    name = worker_name(died.worker_id, pid=died.pid)
    logger.warning(
        "Runner %d (%s) %s: %s",
        died.worker_id,
        name,
        "is given up" if died.given_up else "is replaced",
        died.message,
    )
    failure = Failure(
        boundary="lost", type="RunnerDied", message=f"runner process {name} died: {died.message}"
    )
    # A worker's current attempt is the newest that it has not ended; the next one follows it.
    seen: set[str] = set()
    while (worker := await store.get_worker_by_id(name)) is not None:
        rollout_id, attempt_id = worker.current_rollout_id, worker.current_attempt_id
        if rollout_id is None or attempt_id is None or attempt_id in seen:
            return
        seen.add(attempt_id)
        with contextlib.suppress(InvalidTransitionError):  # it ended in this very moment
            await store.update_attempt(rollout_id, attempt_id, status="unresponsive", error=failure)
