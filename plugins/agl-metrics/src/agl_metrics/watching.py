"""What is counted of a store and of a server: 0.3's metrics, by its names."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from agl.store.answers import Turn
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.store.queries import each_record
from agl.store.rules import ENDED
from agl.types import Rollout
from agl_http.metrics import RequestMetrics
from agl_metrics.contract import Metrics

STORE_LABELS = ("method", "store_pubmeth", "status")
"""Both of the first are the operation: 0.3 had inner methods, which it counted as well."""
ROLLOUT_LABELS = ("status", "mode")
HTTP_LABELS = ("path", "method", "status")
SECONDS = tuple(
    digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5) if power < 2 or digit < 5
)
"""Upper bounds of durations: 0.1 ms to 200 s."""
LOOK_SECONDS = 5.0
"""How often a watched store looks for rollouts that ended by a deadline, or by a lost runner."""
_CLAIMS = frozenset(
    {"dequeue_rollout", "dequeue_many_rollouts", "start_rollout", "start_attempt", "turn"}
)


class WatchedStore(StandInStore):
    """A store whose operations, and whose rollouts that end, are counted.

    ``agl.store.total`` and ``agl.store.latency`` (seconds) have the operation, and ``OK`` or the
    name of the error; ``agl.rollouts.total`` and ``agl.rollouts.duration`` (seconds from its start
    to its end) the final status and the mode. A rollout that a store ends by itself is counted
    with one of the next operations, ``LOOK_SECONDS`` later at most; one that ended before this
    process began is not.
    """

    def __init__(self, store: LightningStore, backend: Metrics) -> None:
        super().__init__(store)
        self._backend = backend
        self._running: set[str] | None = None
        """Rollouts that were claimed and have not been counted; None before the first look."""
        self._looked = 0.0
        for name, labels in (("agl.store", STORE_LABELS), ("agl.rollouts", ROLLOUT_LABELS)):
            backend.register_counter(f"{name}.total", labels, 1)
        backend.register_histogram("agl.store.latency", STORE_LABELS, SECONDS, 1)
        backend.register_histogram("agl.rollouts.duration", ROLLOUT_LABELS, SECONDS, 1)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        running = await self._rollouts_that_run()
        if operation == "update_rollout" and arguments.get("status") in ENDED:
            # What is cancelled in the queue was never claimed.
            before = await self.target.get_rollout_by_id(arguments["rollout_id"])
            if before is not None and before.status not in ENDED:
                running.add(before.rollout_id)
        status, begin = "OK", time.perf_counter()
        try:
            answer = await super().call(operation, arguments)
        except BaseException as error:
            status = type(error).__name__
            raise
        finally:
            seconds = time.perf_counter() - begin
            labels = {"method": operation, "store_pubmeth": operation, "status": status}
            await self._backend.inc_counter("agl.store.total", labels=labels)
            await self._backend.observe_histogram("agl.store.latency", seconds, labels)
        for rollout in await self._perhaps_ended(operation, arguments, answer):
            await self._count(rollout)
        if operation in _CLAIMS:
            running.update(rollout.rollout_id for rollout in _rollouts_in(answer))
        return answer

    async def _rollouts_that_run(self) -> set[str]:
        if self._running is None:
            self._running = set()
            queried = each_record(self.target.query_rollouts, status_in=["preparing", "running"])
            self._running.update([rollout.rollout_id async for rollout in queried])
        return self._running

    async def _perhaps_ended(
        self, name: str, arguments: dict[str, Any], answer: Any
    ) -> Sequence[Rollout]:
        """The rollouts that may have ended with an operation, or by themselves before it."""
        if name == "update_rollout":
            return [answer]
        finish = arguments.get("finish") if name == "turn" else None
        if name == "update_attempt" or finish is not None:
            rollout_id = arguments["rollout_id"] if finish is None else finish.rollout_id
            rollout = await self.target.get_rollout_by_id(rollout_id)
            return [] if rollout is None else [rollout]
        now = time.monotonic()
        if not self._running or now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        return await self.target.query_rollouts(rollout_id_in=list(self._running))

    async def _count(self, rollout: Rollout) -> None:
        """Count a rollout that has ended, once, however often its end is reported."""
        running = await self._rollouts_that_run()
        if rollout.status not in ENDED or rollout.rollout_id not in running:
            return
        running.remove(rollout.rollout_id)
        labels = {"status": rollout.status, "mode": rollout.mode or "none"}
        await self._backend.inc_counter("agl.rollouts.total", labels=labels)
        if rollout.end_time is not None:
            seconds = max(rollout.end_time - rollout.start_time, 0.0)
            await self._backend.observe_histogram("agl.rollouts.duration", seconds, labels)


def _rollouts_in(answer: Any) -> list[Rollout]:
    """The rollouts that a claim gives to a runner."""
    if answer is None:
        return []
    given = answer.claimed if isinstance(answer, Turn) else answer
    return [given] if isinstance(given, Rollout) else list(given)


class RequestWatch(RequestMetrics):
    """Counts requests as ``/metrics`` does, and hands them to a backend.

    ``agl.http.total`` and ``agl.http.latency`` (seconds) have path, method and status.
    """

    def __init__(self, backend: Metrics) -> None:
        super().__init__()
        self._backend = backend
        self._tasks: set[asyncio.Task[None]] = set()
        backend.register_counter("agl.http.total", HTTP_LABELS, 2)
        backend.register_histogram("agl.http.latency", HTTP_LABELS, SECONDS, 2)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        super().observe(method, route, status, seconds)
        labels = {"path": route, "method": method, "status": str(status)}
        task = asyncio.get_running_loop().create_task(self._hand_over(labels, seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, labels: dict[str, str], seconds: float) -> None:
        await self._backend.inc_counter("agl.http.total", labels=labels)
        await self._backend.observe_histogram("agl.http.latency", seconds, labels)
