"""Agents made of functions, and which value each parameter of such a function gets."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, cast, overload

from typing_extensions import Format, get_annotations

from agl.agent.base import GradeMethod, LitAgent, RolloutMethod
from agl.errors import ConfigError
from agl.types import (
    LLM,
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Resource,
    Rollout,
    RolloutMode,
    RolloutRawResult,
)
from agl.types.records import Record

T = TypeVar("T")
Kind = Literal["task", "rollout", "resources", "llm", "prompt_template", "resource", "default"]

NAMED_KINDS: tuple[Kind, ...] = ("rollout", "resources", "llm", "prompt_template")
"""Parameters that need no annotation; ``task`` and the first parameter besides."""

RESOURCE_TYPES: dict[Kind, type[Resource]] = {
    "llm": LLM,
    "prompt_template": PromptTemplate,
    "resource": Resource,
}


class MissingResourceError(ConfigError, LookupError):
    """A parameter of an agent function needs a resource that the rollout does not have."""


@dataclass(frozen=True)
class Slot:
    """A parameter and what it gets."""

    name: str
    kind: Kind
    optional: bool
    """Whether it has a default to fall back on."""


class Injector:
    """Reads a function's parameters, or raises a ``ConfigError``; fills them for each rollout."""

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool) -> None:
        self.function = function
        self.strip_proxy = strip_proxy
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.signature = inspect.signature(function)
        self.slots = self._read()

    def check(self, resources: NamedResources, published: Sequence[type[Resource]]) -> None:
        """Refuse a run in which a parameter gets no resource; see ``LitAgent.check_resources``."""
        for slot in self.slots:
            wanted = None if slot.name in resources else RESOURCE_TYPES.get(slot.kind)
            if wanted and not any(issubclass(kind, wanted) for kind in published):
                self._first_of_kind(slot, resources)

    def call(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the function; a ``MissingResourceError`` if no resource fits a parameter."""
        if self.strip_proxy and isinstance(rollout, AttemptedRollout):
            resources = {
                key: value.with_attempted_rollout(rollout) if isinstance(value, ProxyLLM) else value
                for key, value in resources.items()
            }
        given = {"rollout": rollout, "resources": resources}
        bound = self.signature.bind_partial()
        for slot in self.slots:
            if slot.kind == "task":
                bound.arguments[slot.name] = task
            elif slot.name in resources:
                bound.arguments[slot.name] = resources[slot.name]
            elif slot.kind in given:
                bound.arguments[slot.name] = given[slot.kind]
            elif slot.kind != "default" and (found := self._first_of_kind(slot, resources)):
                bound.arguments[slot.name] = found
        return self.function(*bound.args, **bound.kwargs)

    def _first_of_kind(self, slot: Slot, resources: NamedResources) -> Resource | None:
        alone = sum(other.kind == slot.kind for other in self.slots) == 1
        wanted = RESOURCE_TYPES[slot.kind]
        if slot.kind != "resource" and alone:
            for resource in resources.values():
                if isinstance(resource, wanted):
                    return resource
        if slot.optional:
            return None
        have = ", ".join(f"{key!r} ({type(r).__name__})" for key, r in resources.items())
        by_name = "" if alone else ", and several parameters want one, so each goes by its name"
        raise MissingResourceError(
            f"agent {self.name!r}: no resource for parameter {slot.name!r}, which wants a "
            f"{wanted.__name__}{by_name}; the rollout's resources: {have or 'none'}. Give one in "
            f"the file (resources: {{{slot.name}: ...}}), to Trainer(initial_resources="
            f"{{{slot.name!r}: ...}}), to runner.step(..., resources=...), or let the algorithm "
            "publish it"
        )

    def _read(self) -> list[Slot]:
        parameters = [
            parameter
            for parameter in self.signature.parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        names = [parameter.name for parameter in parameters]
        task = "task" if "task" in names else next(iter(names), None)
        if task is None or task in NAMED_KINDS:
            raise ConfigError(
                f"agent {self.name!r}: its first parameter is the task; "
                f"got {f'{task!r}' if task else 'no parameter'}. Define it as "
                f"{self.name}(task, {', '.join(names)})"
            )
        annotations = _annotations(self.function)
        slots: list[Slot] = []
        for parameter in parameters:
            name, optional = parameter.name, parameter.default is not parameter.empty
            kind: Kind | None = "task" if name == task else name if name in NAMED_KINDS else None
            kind = kind or _kind_of(annotations.get(name)) or ("default" if optional else None)
            if kind is None:
                raise ConfigError(
                    f"agent {self.name!r}: nothing to pass for parameter {name!r}. An agent may "
                    f"take task, {', '.join(NAMED_KINDS)}, and parameters annotated as LLM, "
                    "PromptTemplate, Rollout or NamedResources; give any other one a default"
                )
            slots.append(Slot(name, kind, optional))
        return slots


def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    target: Any = inspect.unwrap(function)
    if isinstance(cast(object, target), functools.partial) or not inspect.isroutine(target):
        target = getattr(target, "func", None) or type(target).__call__  # a partial, or a callable
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that exists only for type checkers; the text will have to do
        return get_annotations(target, format=Format.FORWARDREF)


def _kind_of(annotation: Any) -> Kind | None:
    """What a parameter with this annotation gets; None when the annotation says nothing."""
    found: set[Kind | None] = set()
    if isinstance(annotation, str):
        found = {_KIND_OF_NAME.get(word) for word in re.findall(r"\w+", annotation)}
    elif annotation == NamedResources:
        return "resources"
    elif typing.get_origin(annotation) is typing.Annotated:
        return _kind_of(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (Union, types.UnionType):
        found = {_kind_of(part) for part in typing.get_args(annotation)}
    elif isinstance(annotation, type) and issubclass(annotation, Record):
        names = [base.__name__ for base in annotation.__mro__ if base.__name__ in _KIND_OF_NAME]
        found = {_KIND_OF_NAME[name] for name in names[:1]}
    found -= {None}
    # Several kinds of resources are told apart by name only.
    return "resource" if len(found) > 1 else next(iter(found), None)


_KIND_OF_NAME: dict[str, Kind] = {
    "LLM": "llm",
    "ProxyLLM": "llm",
    "PromptTemplate": "prompt_template",
    "Rollout": "rollout",
    "AttemptedRollout": "rollout",
    "NamedResources": "resources",
    "Resource": "resource",
    "ResourceUnion": "resource",
}


class FunctionalLitAgent(LitAgent[T]):
    """An agent made of a function, see ``agl.rollout``; still callable as that function."""

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
        """Call the function with what its parameters ask for; see ``Injector.call``."""
        return self.injector.call(task, resources, rollout)

    async def rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Await the function with what its parameters ask for; see ``Injector.call``."""
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
    """Like ``rollout``; a ``ConfigError`` for a function that takes no ``llm``."""
    return _decorate(func, "llm", strip_proxy=strip_proxy, grade=grade)


def prompt_rollout(
    func: Callable[..., Any] | None = None, /, *, grade: GradeMethod | None = None
) -> Any:
    """Like ``rollout``; a ``ConfigError`` for a function that takes no ``prompt_template``."""
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
