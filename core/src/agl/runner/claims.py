"""Claim: how much a runner asks the store for, and what becomes of what it will not run."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from agl.execution.base import AT_WORK, ExecutionEvent
from agl.store.base import AttemptEnd, LightningStore, Turn
from agl.store.release import release_claim
from agl.types import AttemptedRollout, Span

T = TypeVar("T")

MOST_AT_ONCE = 8
"""Most rollouts of one claim."""
ANSWER_SECONDS = 1.0
"""A runner that is cancelled waits so long for the answer to its claim, to give back what it got;
only a store that is away takes longer."""


class Claims:
    """Claims for one runner, until it shall stop or has enough.

    Args:
        event: Once it is set nothing is claimed any more, and what has not begun is given back.
        left: How many rollouts may still be claimed.
    """

    def __init__(
        self, store: LightningStore, worker_id: str, event: ExecutionEvent, left: float
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self.event = event
        self.left = left
        self._size = 1
        self._at_work = AT_WORK.get()
        self._waiting: dict[str, AttemptedRollout] = {}
        """What was claimed and has not begun, by attempt."""

    def begin(self, rollout: AttemptedRollout) -> bool:
        """Whether a claimed rollout is still to be run, which is then up to the caller."""
        goes_on = not self.event.is_set()
        return goes_on and self._waiting.pop(rollout.attempt.attempt_id, None) is not None

    async def release(self) -> None:
        """Put what was claimed and will not begin back into the queue; may be called again."""
        for attempt_id, rollout in list(self._waiting.items()):
            await release_claim(self._store, rollout)
            self._waiting.pop(attempt_id, None)

    async def wait(self, free: int, wait_seconds: float) -> Sequence[AttemptedRollout]:
        """Claim for free slots; waits up to ``wait_seconds`` for the first rollout.

        The first claim after a wait asks for one, further ones for more: runners that wake together
        share what was queued.
        """
        limit = int(min(free, self.left, self._size))
        began = time.monotonic()
        claim = self._store.dequeue_many_rollouts(
            limit=limit, worker_id=self._worker_id, wait_seconds=wait_seconds
        )
        claimed = await self._note(limit, claim, lambda claimed: claimed)
        self._size = min(2 * self._size, MOST_AT_ONCE) if claimed else 1
        if not claimed and not self.event.is_set():
            # A store that answers at once cannot wait; then it is asked at intervals.
            waited = time.monotonic() - began
            if waited < wait_seconds / 2:
                await asyncio.sleep(wait_seconds - waited)
        return claimed

    async def turn(self, spans: Sequence[Span], finish: AttemptEnd, *, more: bool) -> Turn:
        """End an attempt, and claim a rollout for its slot if it shall have ``more``."""
        limit = int(min(1, self.left)) if more and not self.event.is_set() else 0
        turn = self._store.turn(
            spans, finish=finish, limit=limit, worker_id=self._worker_id, wait_seconds=0.0
        )
        return await self._note(limit, turn, lambda done: done.claimed)

    async def _note(
        self,
        limit: int,
        claim: Coroutine[Any, Any, T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]],
    ) -> T:
        """The answer. What it claims waits here, whatever becomes of the caller."""
        self.left -= limit
        task = asyncio.ensure_future(claim)
        claimed: Sequence[AttemptedRollout] = []
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=ANSWER_SECONDS)
            task.cancel()
            raise
        finally:
            if task.done() and not task.cancelled() and task.exception() is None:
                claimed = claimed_of(task.result())
                if self._at_work is not None:
                    self._at_work()
                    self._at_work = None
            self._waiting |= {rollout.attempt.attempt_id: rollout for rollout in claimed}
            self.left += limit - len(claimed)
        if self.event.is_set():
            await self.release()
        return task.result()
