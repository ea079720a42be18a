"""The contract of an agent: a class with rollout methods, or a decorated function."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from agl.errors import ConfigError
from agl.injection import Injector, MissingResourceError as MissingResourceError
from agl.tracer.base import Tracer, get_active_tracer
from agl.types import NamedResources, Rollout, RolloutMode, RolloutRawResult

if TYPE_CHECKING:
    from agl.runner import Runner
    from agl.trainer import Trainer

T = TypeVar("T")

RolloutMethod = Callable[
    [Any, NamedResources, Rollout], RolloutRawResult | Awaitable[RolloutRawResult]
]


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
    _trainer: "Trainer | None" = None
    _runner: "Runner[T] | None" = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents

    def is_async(self) -> bool:
        """Whether each mode's rollout is a coroutine, so that many can run at once.

        Raises:
            ConfigError: The class implements no rollout at all.
        """
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

    def _find_method(self, mode: RolloutMode | None) -> RolloutMethod | None:
        for name in _method_names(mode):
            if getattr(type(self), name) is not getattr(LitAgent, name) or name in vars(self):
                return _as_written(getattr(self, name))
        return None

    # --- what a subclass implements

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Do the task.

        Args:
            task: The rollout's input.
            resources: All resources of the snapshot, by name.
            rollout: An ``AttemptedRollout`` when a runner calls.

        Returns:
            The final reward, or None when rewards were emitted (or there is none), or the whole
            list of spans. Anything else fails the attempt, and so does any exception.
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

    # --- what runs it

    def set_trainer(self, trainer: "Trainer") -> None:
        """Called by the trainer."""
        self._trainer = trainer

    def get_trainer(self) -> "Trainer":
        """The trainer that this agent was given to."""
        return self._need("trainer", self._trainer, "agl.Trainer(...).fit(agent, ...)")

    @property
    def trainer(self) -> "Trainer":
        """See ``get_trainer``."""
        return self.get_trainer()

    def set_runner(self, runner: "Runner[T]") -> None:
        """Called by the runner."""
        self._runner = runner

    def get_runner(self) -> "Runner[T]":
        """The runner that took this agent last."""
        return self._need("runner", self._runner, "runner.run_context(agent=..., store=...)")

    @property
    def runner(self) -> "Runner[T]":
        """See ``get_runner``."""
        return self.get_runner()

    def get_tracer(self) -> Tracer:
        """The tracer of the rollout that runs here, else the runner's."""
        tracer = get_active_tracer() or getattr(self._runner, "tracer", None)
        return self._need("tracer", tracer, "runner.run_context(agent=..., store=...)")

    @property
    def tracer(self) -> Tracer:
        """See ``get_tracer``."""
        return self.get_tracer()

    def _need(self, what: str, value: Any, source: str) -> Any:
        if value is None:
            raise ConfigError(f"agent {type(self).__name__!r} has no {what}; {source} sets one")
        return value


def _as_written(method: Callable[..., Any]) -> RolloutMethod:
    """The method, called by the names of its parameters where they are not in today's order.

    0.1 had ``training_rollout(self, task, rollout_id, resources)``.
    """
    names = list(inspect.signature(method).parameters)[1:]
    is_usual = not names or names == ["resources", "rollout"]
    if is_usual or not set(names) <= {"resources", "rollout", "rollout_id"}:
        return method

    def arguments(resources: NamedResources, rollout: Rollout) -> list[Any]:
        values = {
            "resources": resources,
            "rollout": rollout,
            "rollout_id": rollout.rollout_id,
        }
        return [values[name] for name in names]

    if inspect.iscoroutinefunction(method):

        async def call_async(task: Any, resources: NamedResources, rollout: Rollout) -> Any:
            return await method(task, *arguments(resources, rollout))

        return call_async

    def call(task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        return method(task, *arguments(resources, rollout))

    return call


def _method_names(mode: RolloutMode | None) -> tuple[str, ...]:
    """The most specific first."""
    phase = "training" if mode == "train" else "validation"
    return f"{phase}_rollout_async", f"{phase}_rollout", "rollout_async", "rollout"


class FunctionalLitAgent(LitAgent[T]):
    """An agent made of a function; still callable as that function.

    Args:
        function: Plain or coroutine function, or callable. See ``agl.rollout`` for what its
            parameters get.
        strip_proxy: Whether a ``ProxyLLM`` is handed over as a plain ``LLM`` with the address of
            the attempt.
    """

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool = True) -> None:
        super().__init__()
        self.function = function
        self.injector = Injector(function, strip_proxy=strip_proxy)
        functools.update_wrapper(self, function)
        self.__name__: str = self.injector.name
        self._is_async = _is_coroutine_function(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return self._is_async

    def rollout_method(self, mode: RolloutMode | None) -> RolloutMethod:
        """The function behind its injection; the same for every mode."""
        return self.rollout_async if self._is_async else self.rollout

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Call the function with what its parameters ask for.

        Raises:
            MissingResourceError: No resource fits a parameter.
        """
        return self.injector.call(task, resources, rollout)

    async def rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Await the function with what its parameters ask for; see ``rollout``."""
        return await self.injector.call(task, resources, rollout)


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__  # of a callable object
    )


@overload
def rollout(func: Callable[..., Any], /) -> FunctionalLitAgent[Any]: ...
@overload
def rollout(
    func: None = None, /, *, strip_proxy: bool = True
) -> Callable[[Callable[..., Any]], FunctionalLitAgent[Any]]: ...
def rollout(func: Callable[..., Any] | None = None, /, *, strip_proxy: bool = True) -> Any:
    """Make an agent of a function, plain or coroutine.

    Its first parameter (or the one named ``task``) gets the task. Every other one is filled, in
    this order: the resource of the same name; ``rollout``, ``resources``, ``llm`` and
    ``prompt_template`` by name; a ``Rollout``, ``NamedResources``, ``LLM`` or ``PromptTemplate``
    by annotation. ``llm`` and ``prompt_template`` get the first resource of their kind. What is
    left keeps its default.

    Args:
        func: The function, when used without parentheses.
        strip_proxy: Whether a ``ProxyLLM`` is handed over as a plain ``LLM`` with the address of
            the attempt.

    Raises:
        ConfigError: At decoration: nothing can fill a parameter.
    """
    return _decorate(func, strip_proxy, None)


@overload
def llm_rollout(func: Callable[..., Any], /) -> FunctionalLitAgent[Any]: ...
@overload
def llm_rollout(
    func: None = None, /, *, strip_proxy: bool = True
) -> Callable[[Callable[..., Any]], FunctionalLitAgent[Any]]: ...
def llm_rollout(func: Callable[..., Any] | None = None, /, *, strip_proxy: bool = True) -> Any:
    """Like ``rollout``, for a function that takes an ``llm``.

    Raises:
        ConfigError: At decoration: it takes none, or nothing can fill a parameter.
    """
    return _decorate(func, strip_proxy, "llm")


@overload
def prompt_rollout(func: Callable[..., Any], /) -> FunctionalLitAgent[Any]: ...
@overload
def prompt_rollout(
    func: None = None, /
) -> Callable[[Callable[..., Any]], FunctionalLitAgent[Any]]: ...
def prompt_rollout(func: Callable[..., Any] | None = None, /) -> Any:
    """Like ``rollout``, for a function that takes a ``prompt_template``.

    Raises:
        ConfigError: At decoration: it takes none, or nothing can fill a parameter.
    """
    return _decorate(func, True, "prompt_template")


def _decorate(func: Callable[..., Any] | None, strip_proxy: bool, needs: str | None) -> Any:
    if func is None:
        return lambda function: _decorate(function, strip_proxy, needs)  # pyright: ignore
    agent: FunctionalLitAgent[Any] = FunctionalLitAgent(func, strip_proxy=strip_proxy)
    if needs is not None and needs not in agent.injector.kinds():
        raise ConfigError(
            f"@{needs.split('_')[0]}_rollout {agent.__name__!r}: no parameter takes the {needs}; "
            f"add one named {needs!r}, or use @agl.rollout"
        )
    return agent
