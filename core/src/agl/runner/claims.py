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
LOOK_SECONDS = 0.5
"""How often a runner that waits for work looks whether it shall stop, and asks a store that cannot
wait; also how long its first claim waits."""
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

    async def wait(
        self, free: int, wait_seconds: float, is_over: Callable[[], bool]
    ) -> Sequence[AttemptedRollout]:
        """Claim for free slots; waits up to ``wait_seconds`` for the first rollout.

        The first claim after a wait asks for one, further ones for more: runners that wake together
        share what was queued. The wait ends early once the runner ``is_over``.
        """
        limit = int(min(free, self.left, self._size))
        began = time.monotonic()
        if self._at_work is not None:  # who started the runner learns soon that it works
            wait_seconds = min(wait_seconds, LOOK_SECONDS)
        claim = self._store.dequeue_many_rollouts(
            limit=limit, worker_id=self._worker_id, wait_seconds=wait_seconds
        )
        answer = await self._note(limit, claim, lambda claimed: claimed, is_over)
        claimed = () if answer.cancelled() and is_over() else answer.result()
        self._size = min(2 * self._size, MOST_AT_ONCE) if claimed else 1
        if not claimed and not is_over():
            # A store that answers at once cannot wait; then it is asked at intervals.
            await asyncio.sleep(min(wait_seconds, LOOK_SECONDS) - (time.monotonic() - began))
        return claimed

    async def turn(self, spans: Sequence[Span], finish: AttemptEnd, *, more: bool) -> Turn:
        """End an attempt, and claim a rollout for its slot if it shall have ``more``."""
        limit = int(min(1, self.left)) if more and not self.event.is_set() else 0
        turn = self._store.turn(
            spans, finish=finish, limit=limit, worker_id=self._worker_id, wait_seconds=0.0
        )
        return (await self._note(limit, turn, lambda done: done.claimed)).result()

    async def _note(
        self,
        limit: int,
        claim: Coroutine[Any, Any, T],
        claimed_of: Callable[[T], Sequence[AttemptedRollout]],
        is_over: Callable[[], bool] = lambda: False,
    ) -> "asyncio.Task[T]":
        """The answered or cancelled claim; what it brings waits here, whatever becomes of us."""
        self.left -= limit
        task = asyncio.ensure_future(claim)
        claimed: Sequence[AttemptedRollout] = []
        try:
            while not task.done() and not is_over():
                await asyncio.wait([task], timeout=LOOK_SECONDS)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=ANSWER_SECONDS)
            raise
        finally:
            if task.cancel():  # the store gives back what it claimed
                await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                claimed = claimed_of(task.result())
                if self._at_work is not None:
                    self._at_work()
                    self._at_work = None
            self._waiting |= {rollout.attempt.attempt_id: rollout for rollout in claimed}
            self.left += limit - len(claimed)
        if self.event.is_set():
            await self.release()
        return task
