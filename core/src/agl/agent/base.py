"""The contracts of an agent, a class with rollout methods, and of the runner that runs it."""

import contextlib
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, Self, TypeVar

from agl.errors import ConfigError
from agl.execution.base import ExecutionEvent
from agl.store.base import LightningStore
from agl.tracer.base import Tracer, get_active_tracer
from agl.types import GradeResult, NamedResources, Resource, Rollout, RolloutMode, RolloutRawResult
from agl.utils.life_cycle import ParallelWorkerBase

T = TypeVar("T")

_runner_numbers = itertools.count()

RolloutMethod = Callable[
    [Any, NamedResources, Rollout], RolloutRawResult | Awaitable[RolloutRawResult]
]
GradeMethod = Callable[..., GradeResult | Awaitable[GradeResult]]
GRADE_PARAMETERS = {"task", "private", "result"}


class LitAgent(Generic[T]):
    """Does one task with the resources it is given, and says how well it went.

    Implement ``rollout`` or ``rollout_async``; ``training_rollout`` and ``validation_rollout`` (and
    their ``_async`` forms) where mode ``train`` and the other modes differ. The most specific
    method that a subclass has is called; of two equally specific ones, the asynchronous one.
    Whatever state an agent keeps on itself is shared by rollouts that run at the same time.

    Args:
        trained_agents: Regular expression: in which of several agents inside this one model calls
            are learned from; None for all. It is the ``agent_match`` of the adapter.
    """

    trained_agents: str | None = None
    cancel_seconds: float | None = None
    """How long a rollout that is cancelled may clean up; None is 2. Then it counts as stuck."""
    _trainer: Any = None
    _runner: "Runner[T] | None" = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents

    def __getstate__(self) -> dict[str, Any]:
        # Trainer and runner are of this process; they know the store.
        return {k: v for k, v in vars(self).items() if k not in ("_trainer", "_runner")}

    def is_async(self) -> bool:
        """Whether each mode's rollout is a coroutine; a ``ConfigError`` if there is no rollout."""
        methods = [self._find_method(mode) for mode in ("train", "val")]
        if not any(methods):
            self.rollout_method(None)
        return all(inspect.iscoroutinefunction(method) for method in methods if method)

    def rollout_method(self, mode: RolloutMode | None) -> RolloutMethod:
        """The method that does a rollout of this mode; None counts as validation.

        Raises:
            ConfigError: The class implements none.
        """
        method = self._find_method(mode)
        if method is None:
            raise ConfigError(
                f"agent {type(self).__name__!r} has no rollout for mode {mode!r}; implement one of "
                f"{', '.join(reversed(_method_names(mode)))}"
            )
        return method

    def grade_method(self) -> GradeMethod | None:
        """``grade``, or None; a ``ConfigError`` if its parameters are not those of a grader."""
        if not self._has("grade") or not callable(self.grade):
            return None
        names = inspect.signature(self.grade).parameters
        if set(names) != GRADE_PARAMETERS:
            raise ConfigError(
                f"agent {type(self).__name__!r}: its method 'grade' has the parameters "
                f"({', '.join(names)}); a grader has (task, private, result). Give another name to "
                "a method that is no grader"
            )
        return self.grade

    def _find_method(self, mode: RolloutMode | None) -> RolloutMethod | None:
        for name in _method_names(mode):
            if self._has(name):
                return getattr(self, name)
        return None

    def _has(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(LitAgent, name) or name in vars(self)

    # --- what a subclass implements

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Do the task.

        Args:
            task: The rollout's input.
            resources: All resources of the snapshot, by name.
            rollout: An ``AttemptedRollout`` when a runner calls.

        Returns:
            The final reward, or None when rewards were emitted (or there is none), or the whole
            list of spans; where there is a ``grade``, what it gets as ``result``. Anything else
            fails the attempt, and so does any exception.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement rollout")

    async def rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do the task, as a coroutine; see ``rollout``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement rollout_async")

    def training_rollout(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do the task in mode ``train``; see ``rollout``."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do the task in any mode but ``train``; see ``rollout``."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do the task in mode ``train``, as a coroutine; see ``rollout``."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do the task in any mode but ``train``, as a coroutine; see ``rollout``."""
        return await self.rollout_async(task, resources, rollout)

    def grade(self, task: Any, private: Any, result: Any) -> GradeResult | Awaitable[GradeResult]:
        """Say how well the task was done; plain or coroutine. Optional.

        The runner calls it after the agent has ended, in a fresh process which no agent's code has
        reached, in an empty folder. All arguments have been through JSON. An agent that has it
        gets tasks without ``private``, and no reward but this one counts for it.

        Args:
            task: The rollout's input without ``private``.
            private: What the input has under the key ``private``; None where there is none.
            result: What the rollout method returned: any JSON value of at most 16 MiB.

        Returns:
            The final reward, or several by name with the primary one first, or None for none.
            Anything else fails the attempt, and so does any exception.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement grade")

    # --- what runs it

    def check_resources(
        self, resources: NamedResources, published: Sequence[type[Resource]] | None
    ) -> None:
        """Refuse a run that begins with these resources, and whose algorithm adds those kinds.

        ``published`` is None where nobody knows them: then nothing is refused.

        Raises:
            MissingResourceError: An agent made of a function asks for another one.
        """

    def set_trainer(self, trainer: Any) -> None:
        """Called by the trainer."""
        self._trainer = trainer

    def get_trainer(self) -> Any:
        """The ``agl.Trainer`` that this agent was given to."""
        return self._need("trainer", self._trainer, "agl.Trainer(...).fit(agent, ...)")

    trainer = property(get_trainer)

    def set_runner(self, runner: "Runner[T]") -> None:
        """Called by the runner."""
        self._runner = runner

    def get_runner(self) -> "Runner[T]":
        """The runner that took this agent last."""
        return self._need("runner", self._runner, "runner.run_context(agent=..., store=...)")

    runner = property(get_runner)

    def get_tracer(self) -> Tracer:
        """The tracer of the rollout that runs here, else the runner's."""
        tracer = get_active_tracer() or getattr(self._runner, "tracer", None)
        return self._need("tracer", tracer, "runner.run_context(agent=..., store=...)")

    tracer = property(get_tracer)

    def _need(self, what: str, value: Any, source: str) -> Any:
        if value is None:
            raise ConfigError(f"agent {type(self).__name__!r} has no {what}; {source} sets one")
        return value


def _method_names(mode: RolloutMode | None) -> tuple[str, ...]:
    """The most specific first."""
    phase = "training" if mode == "train" else "validation"
    return f"{phase}_rollout_async", f"{phase}_rollout", "rollout_async", "rollout"


class Runner(ParallelWorkerBase, ABC, Generic[T]):
    """Runs an agent on rollouts of a store."""

    @abstractmethod
    def init(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, agent: LitAgent[T], *, hooks: Sequence[object] | None = None, **kwargs: Any
    ) -> None:
        """Take the agent, and the objects whose hooks are called: a trainer's ``HookCaller``."""

    @abstractmethod
    def init_worker(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, worker_id: int, store: LightningStore, **kwargs: Any
    ) -> None:
        """Take the store; called in the process or thread that will run."""

    @abstractmethod
    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Claim and run rollouts until ``event`` is set."""

    @abstractmethod
    async def step(
        self,
        input: T,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one rollout past the queue, and return it as it ended."""

    @contextlib.contextmanager
    def run_context(
        self,
        *,
        agent: LitAgent[T],
        store: LightningStore,
        hooks: Sequence[object] | None = None,
        worker_id: int | None = None,
    ) -> Generator[Self]:
        """Prepare for ``step`` and ``iter``, and clean up afterwards.

        Args:
            worker_id: A number for this runner; None takes the next free one of this process.
        """
        number = next(_runner_numbers) if worker_id is None else worker_id
        self.init(agent, hooks=hooks)
        try:
            self.init_worker(number, store)
            try:
                yield self
            finally:
                self.teardown_worker(number)
        finally:
            self.teardown()
