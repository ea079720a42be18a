"""Tells when a runner has begun to work: what it dies of later is no failure to start."""

import time
from collections.abc import Callable
from typing import Any

from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.store.operation_table import Operation

CLAIMS = frozenset(
    {"dequeue_rollout", "dequeue_many_rollouts", "start_rollout", "start_attempt", "turn"}
)
IDLE_SECONDS = 2.0
"""A runner that has asked an empty queue for so long has begun to work, too."""


class StoreAtWork(StandInStore):
    """A runner's store, which says once that the runner is at work.

    Args:
        store: The store.
        at_work: Called when the runner holds its first claim, before it can do anything with it; or
            when it still asks after some time.
    """

    def __init__(self, store: LightningStore, at_work: Callable[[], None]) -> None:
        super().__init__(store)
        self._at_work = at_work
        self._is_at_work = False
        self._first_answer: float | None = None

    async def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        answer = await super().call(operation, arguments)
        if not self._is_at_work and operation.name in CLAIMS:
            now = time.monotonic()
            self._first_answer = now if self._first_answer is None else self._first_answer
            claimed = answer.claimed if operation.name == "turn" else answer
            if claimed or now - self._first_answer >= IDLE_SECONDS:
                self._is_at_work = True
                self._at_work()
        return answer
