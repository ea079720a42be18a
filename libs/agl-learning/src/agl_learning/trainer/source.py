"""Where the experience of a step comes from: its own rollouts, or those that ran ahead of it.

A source takes tasks in their order. It asks for their rollouts under keys, so that after a kill it
gets those that there are. ``taken`` is all that it must know to go on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from agl.errors import ConfigError, StoppedError
from agl_learning.advantages.estimator_option import ACROSS_TASKS
from agl_learning.advantages.weighing import Weighed
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import version_lags
from agl_learning.collect.task_order import Tasks
from agl_records.ledger.ledger import Ledger

logger = logging.getLogger("agl.learning")

Weigh = Callable[[Collected], list[Weighed]]
"""How the algorithm makes advantages; called in a thread."""


class Runners(Protocol):
    """What a source asks for rollouts; see ``agl_learning.trainer.runners``."""

    async def collect(
        self,
        after: int,
        gather: Callable[[], Awaitable[Collected]],
        tasks: Callable[[int], Sequence[Any]],
    ) -> Collected: ...

    async def ask(self, after: int, tasks: Sequence[Any], first_group: int) -> Collected: ...

    def key(self, after: int) -> str: ...


@dataclass(eq=False)
class Source:
    """Where a loop gets what its steps learn from; nothing is under way between steps."""

    runs_ahead: ClassVar[bool] = False
    """Whether rollouts run while a step is trained, so that waiting for them is idle time."""
    runners: Runners
    tasks: Tasks
    groups: int
    """How many tasks a step has."""
    taken: int
    """How many tasks the steps so far took."""

    async def next(self, after: int) -> Collected:
        """What the step after so many learns from."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Until what is under way has ended: it was asked to stop, as the run was."""

    async def stop(self) -> list[tuple[int, list[Any]]]:
        """Cancel what is under way; per step that nobody has taken, those before it, and tasks."""
        return []


@dataclass(eq=False)
class InStep(Source):
    """The rollouts of a step run when it is its turn.

    With refills (dynamic sampling), in the place of groups that teach nothing others are drawn, up
    to a limit. A group teaches nothing where none of its calls would get an advantage: all rewards
    are equal, say. Source: DAPO (arXiv:2503.14476). Where we differ: groups are never thrown away;
    those that taught nothing are in the accounts as all are, so that the step has more rollouts.
    """

    max_refills: int = 0
    """How often others are drawn, at most."""
    weigh: Weigh | None = None
    """Says which groups would teach something; needed with refills."""

    async def next(self, after: int) -> Collected:
        async def gather() -> Collected:
            number, begun, whole = self.groups, 0, None
            for _ in range(self.max_refills + 1):
                tasks = self.tasks.take(self.taken + begun, number)
                found = await self.runners.ask(after, tasks, begun)
                whole = found if whole is None else _joined(whole, found)
                begun += number
                if self.weigh is None:
                    break
                idle = await asyncio.to_thread(idle_groups, whole, self.weigh)
                number = self.groups + len(idle) - begun
                if number <= 0:
                    break
            assert whole is not None
            return whole

        tasks = partial(self.tasks.take, self.taken)
        collected = await self.runners.collect(after, gather, tasks)
        self.taken += len({one.group for one in collected.ended})
        return collected


def idle_groups(collected: Collected, weigh: Weigh) -> set[int]:
    """The groups of which no call would get an advantage; nothing is booked."""
    groups = {one.rollout.rollout_id: one.group for one in collected.ended}
    spare = Ledger()
    spare.merge(collected.ledger)
    taught = weigh(replace(collected, ledger=spare))
    return {*groups.values()} - {groups[one.row.rollout_id] for one in taught}


def _joined(one: Collected, other: Collected) -> Collected:
    one.ledger.merge(other.ledger)
    return Collected(
        [*one.ended, *other.ended],
        one.ledger,
        one.seconds + other.seconds,
        [*one.lost, *other.lost],
        [*one.others, *other.others],
        {name: one.judged[name] + value for name, value in other.judged.items()},
    )


@dataclass
class _Begun:
    key: str
    tasks: list[Any]
    running: asyncio.Task[Collected]


@dataclass(eq=False)
class Ahead(Source):
    """Rollouts of the next steps run while a step is trained: nobody waits for the other.

    Steps take what was collected for them in their order. So a batch is the tasks that are its
    turn, slow ones too: to take whatever ends first would train more of what is quick. With a
    staleness S the rollouts of S later steps are under way, and no call of a step was sampled by
    weights that are more than S updates behind; what is older all the same is rejected.

    Source: asynchronous reinforcement learning with bounded staleness (AReaL, arXiv:2505.24298).
    """

    runs_ahead = True
    max_staleness: int
    """S."""
    steps: int
    """How many the run is to have."""

    def __post_init__(self) -> None:
        self._begun: dict[int, _Begun] = {}

    async def next(self, after: int) -> Collected:
        for later in range(after, min(after + self.max_staleness + 1, self.steps)):
            if later not in self._begun:
                start = self.taken + (later - after) * self.groups
                self._begin(later, self.tasks.take(start, self.groups))
        while True:
            begun = self._begun[after]
            await asyncio.wait([begun.running])
            del self._begun[after]
            collected = begun.running.result()
            if begun.key == self.runners.key(after):
                self.taken += self.groups
                return collected
            self._begin(after, begun.tasks)  # it was given up meanwhile

    def _begin(self, after: int, tasks: list[Any]) -> None:
        ask = partial(self.runners.ask, after, tasks, 0)
        gathering = self.runners.collect(after, ask, lambda _: tasks)
        running = asyncio.create_task(gathering, name=f"agl-ahead-{after}")
        self._begun[after] = _Begun(self.runners.key(after), tasks, running)

    async def wait(self) -> None:
        if running := [begun.running for begun in self._begun.values()]:
            await asyncio.wait(running)

    async def stop(self) -> list[tuple[int, list[Any]]]:
        left, self._begun = self._begun, {}
        for begun in left.values():
            begun.running.cancel()
        ends = await asyncio.gather(*(one.running for one in left.values()), return_exceptions=True)
        for after, end in zip(left, ends, strict=True):
            if isinstance(end, Exception) and not isinstance(end, StoppedError):
                logger.warning(
                    "the rollouts of step %d had failed: %s", after + 1, end, exc_info=end
                )
        return [(after, begun.tasks) for after, begun in left.items()]


def check_source(owner: str, options: Any) -> None:
    """Refuse ``max_refills``, ``max_staleness`` and ``deterministic`` that do not go together.

    Raises:
        ConfigError: It names the options.
    """
    staleness, refills = options.max_staleness, options.max_refills
    if refills and options.estimator.type in ACROSS_TASKS:
        raise ConfigError(
            f"{owner}: max_refills is {refills}, and the estimator {options.estimator.type!r} "
            "compares no groups that could be refilled. Leave it out"
        )
    why = {
        "deterministic": "which weights answer a call then depends on time",
        "max_refills": "the tasks of later steps are drawn before it is known what a step lacks",
    }
    for name, reason in why.items():
        if staleness and getattr(options, name):
            raise ConfigError(
                f"{owner}: {name} cannot be had with max_staleness={staleness}: {reason}. "
                f"Leave one of the two out"
            )


def reject_stale(collected: Collected, version: int, max_staleness: int) -> dict[str, int]:
    """Let no rollout be trained of which older weights than allowed sampled a call.

    Its calls go into the bin ``rejected``, or ``unknown_version`` where nobody says which weights
    sampled one of them. Weights that changed meanwhile are as old as the first of them. ``version``
    is that of the weights that are to be changed.

    Returns:
        Metrics: ``rollouts/stale``, how many were rejected, and ``version_lag/max``, of all others.
    """
    stale, most = 0, 0
    for one in collected.ended:
        known = [version for row in one.rows for version in row.model_versions]
        if one.unusable is None and None in known:
            why = "the model's server does not say which weights sampled it (weight_versions)"
            one.unusable = ("unknown_version", why)
        lag = max(version_lags(one.rows, version), default=0)
        if lag <= max_staleness:
            most = max(most, lag)
        elif one.unusable is None:
            stale += 1
            why = f"weights {lag} updates behind sampled it, and max_staleness is {max_staleness}"
            one.unusable = ("rejected", why)
    return {"rollouts/stale": stale, "version_lag/max": most}
