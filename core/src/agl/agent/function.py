"""Agents made of functions: ``agl.rollout``, ``agl.llm_rollout`` and ``agl.prompt_rollout``."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from agl.agent.base import GradeMethod, LitAgent, RolloutMethod
from agl.agent.injection import Injector
from agl.errors import ConfigError
from agl.types import NamedResources, Resource, Rollout, RolloutMode, RolloutRawResult

T = TypeVar("T")


class FunctionalLitAgent(LitAgent[T]):
    """An agent made of a function; still callable as that function.

    Args:
        function: Plain or coroutine function, or callable. See ``agl.rollout`` for what its
            parameters get.
        strip_proxy: Whether a ``ProxyLLM`` is handed over as a plain ``LLM`` with the address of
            the attempt.
        grade: What grades its results; see ``LitAgent.grade``.

    Raises:
        ConfigError: Nothing can fill a parameter, or those of ``grade`` are others.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        strip_proxy: bool = True,
        grade: GradeMethod | None = None,
    ) -> None:
        super().__init__()
        self.function = function
        self.injector = Injector(function, strip_proxy=strip_proxy)
        functools.update_wrapper(self, function)
        self.__name__: str = self.injector.name
        methods = function, type(function).__call__  # of a callable object
        self._is_async = any(map(inspect.iscoroutinefunction, methods))
        if grade is not None:
            self.grade = grade
            self.grade_method()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def check_resources(
        self, resources: NamedResources, published: Sequence[type[Resource]] | None
    ) -> None:
        if published is not None:
            self.injector.check(resources, published)

    def _find_method(self, mode: RolloutMode | None) -> RolloutMethod:
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


@overload
def rollout(func: Callable[..., Any], /) -> FunctionalLitAgent[Any]: ...
@overload
def rollout(
    func: None = None, /, *, strip_proxy: bool = True, grade: GradeMethod | None = None
) -> Callable[[Callable[..., Any]], FunctionalLitAgent[Any]]: ...
def rollout(
    func: Callable[..., Any] | None = None,
    /,
    *,
    strip_proxy: bool = True,
    grade: GradeMethod | None = None,
) -> Any:
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
        grade: A function ``(task, private, result)``, plain or coroutine, which gives the reward
            for what the agent returns; see ``LitAgent.grade``.

    Raises:
        ConfigError: At decoration: nothing can fill a parameter, or those of ``grade`` are others.
    """
    return _decorate(func, strip_proxy=strip_proxy, grade=grade)


def llm_rollout(
    func: Callable[..., Any] | None = None,
    /,
    *,
    strip_proxy: bool = True,
    grade: GradeMethod | None = None,
) -> Any:
    """Like ``rollout``, for a function that takes an ``llm``.

    Raises:
        ConfigError: At decoration: it takes none, or nothing can fill a parameter.
    """
    return _decorate(func, "llm", strip_proxy=strip_proxy, grade=grade)


def prompt_rollout(
    func: Callable[..., Any] | None = None, /, *, grade: GradeMethod | None = None
) -> Any:
    """Like ``rollout``, for a function that takes a ``prompt_template``.

    Raises:
        ConfigError: At decoration: it takes none, or nothing can fill a parameter.
    """
    return _decorate(func, "prompt_template", grade=grade)


def _decorate(func: Callable[..., Any] | None, needs: str | None = None, **options: Any) -> Any:
    if func is None:
        return functools.partial(_decorate, needs=needs, **options)
    agent: FunctionalLitAgent[Any] = FunctionalLitAgent(func, **options)
    if needs is not None and needs not in {slot.kind for slot in agent.injector.slots}:
        raise ConfigError(
            f"@{needs.split('_')[0]}_rollout {agent.__name__!r}: no parameter takes the {needs}; "
            f"add one named {needs!r}, or use @agl.rollout"
        )
    return agent
