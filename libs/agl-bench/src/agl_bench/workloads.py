"""The store workloads that Agent Lightning 0.3 published: agents that sleep and emit spans.

Source: parameters as 0.3 published them; sizes of the attributes in ``payloads``.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["batch", "batch_partial", "single"]


@dataclass(frozen=True)
class Workload:
    """How much work, how it is queued, and by how many runners it is done."""

    name: str
    mode: Mode
    tasks: int
    """As published; see ``short_tasks``."""
    batch: int
    """Queued at once; with ``single``, how many are in flight."""
    remaining: int
    """The next batch is queued when so few rollouts are not finished."""
    runners: int
    max_rounds: int
    max_sleep: float
    """Seconds; each sleep is drawn from 0 to this."""
    short_tasks: int
    """What a run of well under a minute does."""

    @property
    def busy_seconds(self) -> float:
        """Expected time that one agent sleeps."""
        return (self.max_rounds + 1) / 2 * self.max_sleep + self.max_sleep / 2

    @property
    def ideal_rate(self) -> float:
        """Rollouts per second of runners that are never without work."""
        return self.runners / self.busy_seconds

    def due(self, unfinished: int) -> int:
        """How many tasks to queue now.

        Args:
            unfinished: How many were queued and have not finished.
        """
        if self.mode == "single":
            return max(self.batch - unfinished, 0)
        return self.batch if unfinished <= self.remaining else 0


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("minimal", "batch", 4096, 256, 0, 32, 6, 0.5, 256),
        Workload("medium", "batch", 10_000, 1000, 0, 100, 10, 0.1, 2000),
        Workload("mid-high", "batch", 20_000, 2048, 0, 300, 6, 0.1, 4096),
        Workload("large", "batch", 50_000, 8192, 0, 1000, 3, 0.1, 8192),
        Workload("long-queue", "batch_partial", 50_000, 1024, 4096, 256, 4, 0.1, 8192),
        Workload("in-flight", "single", 50_000, 2048, 0, 256, 2, 0.1, 8192),
        Workload("heavy-trace", "batch_partial", 10_000, 1024, 256, 512, 20, 1.0, 1024),
    )
}


@dataclass(frozen=True)
class Round:
    """One outer span with two nested ones, and whether a reward follows."""

    sleeps: tuple[float, float]
    reward: float | None


@dataclass(frozen=True)
class Script:
    """What the agent does with one task."""

    rounds: Sequence[Round]
    final_sleep: float
    final_reward: float

    @property
    def busy_seconds(self) -> float:
        """How long it sleeps."""
        return sum(sum(round.sleeps) for round in self.rounds) + self.final_sleep


def script_of(workload: Workload, task: int, seed: int) -> Script:
    """Draw what happens with a task; the same numbers give the same script.

    Args:
        workload: Gives the limits.
        task: Number of the task.
        seed: Of the run.
    """
    draw = random.Random(f"{seed}/{workload.name}/{task}")
    rounds = [
        Round(
            (draw.uniform(0, workload.max_sleep), draw.uniform(0, workload.max_sleep)),
            draw.random() if draw.random() < 0.5 else None,
        )
        for _ in range(draw.randint(1, workload.max_rounds))
    ]
    return Script(rounds, draw.uniform(0, workload.max_sleep), draw.random())


def perfect_seconds(workload: Workload, busy: Sequence[float]) -> float:
    """How long a run takes with a store that costs nothing.

    Unlike ``ideal_rate`` it knows that runners wait at the end of a batch for the slowest one.

    Args:
        workload: How work is queued.
        busy: Seconds that each task sleeps, in the order of the queue.
    """
    ends: list[float] = []  # of what runs now, a heap
    now = 0.0
    queued = next_task = finished = 0
    while finished < len(busy):
        queued = min(queued + workload.due(queued - finished), len(busy))
        while next_task < queued and len(ends) < workload.runners:
            heapq.heappush(ends, now + busy[next_task])
            next_task += 1
        now = heapq.heappop(ends)
        finished += 1
    return now
