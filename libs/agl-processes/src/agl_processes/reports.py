"""What follows for the store, and for the algorithm, when runners die."""

import asyncio
import contextlib
import logging

from agl import errors
from agl.execution.base import ThreadingEvent
from agl.store.base import LightningStore
from agl.store.release import release_claim
from agl.types import AttemptedRollout, Failure
from agl.utils.life_cycle import worker_name
from agl_processes.supervisor import AllEnded, Report, RunnerDied

logger = logging.getLogger("agl.server")

AGAIN_SECONDS = 1.0
"""Pause before a store that could not write what a runner lost is told again."""


class Reports:
    """The supervisor's reports, brought from its reader thread to the running loop."""

    def __init__(self) -> None:
        self.no_runners = ThreadingEvent()
        """Set when no runner is left."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[Report] = asyncio.Queue()
        self._why_gone: str | None = None
        """Why runners are missing, if not each ended in its order."""

    def open(self) -> None:
        """Take reports in the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, report: Report) -> None:
        """Take a report, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            if isinstance(report, RunnerDied):
                how = "is given up" if report.given_up else "has ended"
                how = "is replaced" if report.is_replaced else how
                about = report.worker_id, _name_of(report), how, report.message
                logger.warning("Runner %d (%s) %s: %s", *about)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, report)

    async def follow(self, store: LightningStore) -> None:
        """Mark what each dead runner lost, until no runner is left.

        Raises:
            RunnerCrashError: A runner died because the store is away; it has waited for it.
            StoreUnavailableError: The same, found out here.
        """
        while not isinstance(report := await self._queue.get(), AllEnded):
            if isinstance(report, RunnerDied):
                message = f"runner {report.worker_id}: {report.message}"
                if report.store_away:
                    raise errors.RunnerCrashError(message)
                if report.given_up:
                    self._why_gone = message
                try:
                    await _mark_lost_patiently(store, report)
                except asyncio.CancelledError:
                    self._queue.put_nowait(report)  # for ``follow_rest``
                    raise
        self._why_gone = report.because or self._why_gone
        self.no_runners.set()

    async def follow_rest(self, store: LightningStore, seconds: float) -> None:
        """Mark what was lost in the last moments, if the store still takes it."""
        await asyncio.sleep(0)  # let what ``deliver`` scheduled arrive
        reports = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        # At the same time: a store that makes one wait makes all wait.
        marks = [mark_lost(store, one) for one in reports if isinstance(one, RunnerDied)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for error in await asyncio.gather(*marks, return_exceptions=True):
                    if isinstance(error, errors.AglError):
                        logger.warning("What a runner left could not be noted: %s", error)
                    elif error is not None:
                        raise error

    def raise_if_given_up(self) -> None:
        """A ``RunnerCrashError`` that says what ended the runners, if they did not end in order."""
        if self._why_gone is not None:
            raise errors.RunnerCrashError(f"no runner is left; {self._why_gone}")


async def _mark_lost_patiently(store: LightningStore, died: RunnerDied) -> None:
    while True:
        try:
            return await mark_lost(store, died)
        except errors.NotAllowedError as error:  # a token of a runner ends what it claimed itself
            return logger.warning(
                "What runner %d left stays open until its unresponsive_seconds; with an admin's "
                "AGL_SERVER_TOKEN on this machine it would be ended at once: %s",
                died.worker_id,
                error,
            )
        except errors.StoreError as error:  # a full disk, say: once more when there may be space
            if errors.is_away(error):
                raise
            logger.warning("What runner %d left cannot be noted yet: %s", died.worker_id, error)
        await asyncio.sleep(AGAIN_SECONDS)


async def mark_lost(store: LightningStore, died: RunnerDied) -> None:
    """Give every unfinished attempt of a dead runner the status ``unresponsive`` and a reason.

    What an orphan ran goes back into the queue, also from its last attempt: nobody is there to run
    it now, and who goes on with the run will.
    """
    name = _name_of(died)
    failure = Failure(
        boundary="lost", type="RunnerDied", message=f"runner process {name} died: {died.message}"
    )
    # A worker's current attempt is the newest that it has not ended; the next one follows it.
    seen: set[str] = set()
    while died.pid and (worker := await store.get_worker_by_id(name)) is not None:
        rollout_id, attempt_id = worker.current_rollout_id, worker.current_attempt_id
        if rollout_id is None or attempt_id is None or attempt_id in seen:
            return
        seen.add(attempt_id)
        with contextlib.suppress(errors.InvalidTransitionError):  # it ended in this very moment
            try:
                await _mark(store, rollout_id, attempt_id, failure, died.is_orphan)
            except errors.UnknownRecordError:  # it was deleted, and the worker will name no other
                for one in await store.query_rollouts(status_in=["preparing", "running"]):
                    if isinstance(one, AttemptedRollout) and one.attempt.worker_id == name:
                        with contextlib.suppress(
                            errors.InvalidTransitionError, errors.UnknownRecordError
                        ):
                            ids = one.rollout_id, one.attempt.attempt_id
                            await _mark(store, *ids, failure, died.is_orphan)


def _name_of(died: RunnerDied) -> str:
    return died.name or worker_name(died.worker_id, pid=died.pid)


async def _mark(
    store: LightningStore, rollout_id: str, attempt_id: str, why: Failure, is_orphan: bool
) -> None:
    rollout = await store.get_rollout_by_id(rollout_id) if is_orphan else None
    if isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id == attempt_id:
        await release_claim(store, rollout)
        await store.update_attempt(rollout_id, attempt_id, error=why)
    else:
        await store.update_attempt(rollout_id, attempt_id, status="unresponsive", error=why)
