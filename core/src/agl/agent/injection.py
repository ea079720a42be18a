"""Which value each parameter of an agent function gets."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from agl.errors import ConfigError
from agl.types import (
    LLM,
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourceUnion,
    Rollout,
)

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
    """Reads a function's parameters once, and fills them for each rollout.

    Args:
        function: The agent function.
        strip_proxy: See ``agl.rollout``.

    Raises:
        ConfigError: Nothing can fill a parameter, or there is none for the task.
    """

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

    def kinds(self) -> set[Kind]:
        """The kinds of values that the function takes."""
        return {slot.kind for slot in self.slots}

    def call(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the function.

        Raises:
            MissingResourceError: No resource fits a parameter.
        """
        if self.strip_proxy and isinstance(rollout, AttemptedRollout):
            resources = {
                key: value.with_attempted_rollout(rollout) if isinstance(value, ProxyLLM) else value
                for key, value in resources.items()
            }
        bound = self.signature.bind_partial()
        for slot in self.slots:
            if slot.kind == "task":
                bound.arguments[slot.name] = task
            elif slot.name in resources:
                bound.arguments[slot.name] = resources[slot.name]
            elif slot.kind == "rollout":
                bound.arguments[slot.name] = rollout
            elif slot.kind == "resources":
                bound.arguments[slot.name] = resources
            elif slot.kind != "default":
                found = self._first_of_kind(slot, resources)
                if found is not None:
                    bound.arguments[slot.name] = found
        return self.function(*bound.args, **bound.kwargs)

    def _first_of_kind(self, slot: Slot, resources: NamedResources) -> Resource | None:
        alone = sum(other.kind == slot.kind for other in self.slots) == 1
        if slot.kind != "resource" and alone:
            for resource in resources.values():
                if isinstance(resource, RESOURCE_TYPES[slot.kind]):
                    return resource
        if slot.optional:
            return None
        wanted = RESOURCE_TYPES[slot.kind].__name__
        have = ", ".join(f"{key!r} ({type(r).__name__})" for key, r in resources.items())
        by_name = "" if alone else ", and several parameters want one, so each goes by its name"
        raise MissingResourceError(
            f"agent {self.name!r}: no resource for parameter {slot.name!r}, which wants a "
            f"{wanted}{by_name}; the rollout's resources: {have or 'none'}. Give one in the file "
            f"(resources: {{{slot.name}: ...}}), to Trainer(initial_resources={{{slot.name!r}: "
            "...}), to runner.step(..., resources=...), or let the algorithm publish it"
        )

    def _read(self) -> list[Slot]:
        parameters = [
            parameter
            for parameter in self.signature.parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        names = [parameter.name for parameter in parameters]
        if "task" in names:
            task = "task"
        elif not names or names[0] in NAMED_KINDS:
            raise ConfigError(
                f"agent {self.name!r}: its first parameter is the task; "
                f"got {f'{names[0]!r}' if names else 'no parameter'}. Define it as "
                f"{self.name}(task, {', '.join(names)})"
            )
        else:
            task = names[0]
        annotations = _annotations(self.function)
        slots: list[Slot] = []
        for parameter in parameters:
            name, optional = parameter.name, parameter.default is not parameter.empty
            kind: Kind | None
            if name == task:
                kind = "task"
            elif name in NAMED_KINDS:
                kind = name
            else:
                kind = _kind_of(annotations.get(name)) or ("default" if optional else None)
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
    if not inspect.isroutine(target):
        target = getattr(target, "func", None) or type(target).__call__  # a partial, or a callable
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that exists only for type checkers; the text will have to do
        return getattr(target, "__annotations__", {})


def _kind_of(annotation: Any) -> Kind | None:
    """What a parameter with this annotation gets; None when the annotation says nothing."""
    if isinstance(annotation, str):
        return _common(_KIND_OF_NAME.get(word) for word in set(re.findall(r"\w+", annotation)))
    if annotation == NamedResources:
        return "resources"
    if annotation == ResourceUnion:
        return "resource"
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return _common(_kind_of(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return _kind_of(typing.get_args(annotation)[0])
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, Rollout):
        return "rollout"
    for kind, resource_type in RESOURCE_TYPES.items():
        if issubclass(annotation, resource_type):
            return kind
    return None


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


def _common(kinds: Iterable[Kind | None]) -> Kind | None:
    """The kind of a union: several kinds of resources are told apart by name only."""
    found: set[Kind] = {kind for kind in kinds if kind is not None}
    if len(found) > 1:
        return "resource"
    return found.pop() if found else None
