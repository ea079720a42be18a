"""Where agl has what ``agentlightning`` gives under a path and a name."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import Any, NamedTuple

from agentlightning._migrate.advice import INSTEAD, OTHERWISE, RENAMED
from agentlightning._refused import REFUSED

SEARCHED = (
    "emitter",
    "semconv",
    "types",
    "utils.otel",
    "store.base",
    "execution.base",
    "tracer.base",
)
"""Modules of agl where a name may be that is neither at its top nor where it was."""


class Home(NamedTuple):
    """Where a name is in agl."""

    module: str
    name: str


@cache
def public_names() -> frozenset[str]:
    """The names of ``import agl``, those of plugins included, without importing any."""
    import agl
    from agl.utils import catalogue

    return frozenset({*agl.__all__, *catalogue.public_names("components")})


@cache
def has_module(name: str) -> bool:
    """Whether there is a module of this name."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_module(path: str) -> bool:
    """Whether ``agentlightning`` has a module of this path; empty for the top."""
    return has_module(f"agentlightning.{path}".rstrip("."))


@cache
def home_of(path: str, name: str) -> Home | None:
    """Where agl has a name of a module below ``agentlightning``; "" is the path of the top.

    None where agl has nothing of this meaning; ``advice_for`` says what to use.
    """
    if name in REFUSED.get(path, {}):
        return None
    if name in RENAMED:
        renamed = RENAMED[name]
        return renamed and Home(*renamed)
    if name in INSTEAD:
        return None
    if name in public_names():
        return Home("agl", name)
    for module in dict.fromkeys((path, *SEARCHED)):
        found = _module(f"agl.{module}".rstrip("."))
        if found is not None and _is_own(getattr(found, name, None)):
            return Home(found.__name__, name)
    return None


def advice_for(path: str, name: str) -> str:
    """What to use in place of a name that agl does not have."""
    refused = REFUSED.get(path, {}).get(name)
    return f"agl refuses it: {refused}" if refused else INSTEAD.get(name, OTHERWISE)


@cache
def parameters_of(home: Home) -> frozenset[str] | None:
    """The names of what it takes; None where it takes any, or cannot be asked."""
    try:
        taken = signature(getattr(import_module(home.module), home.name)).parameters.values()
    except Exception:  # a plugin that is not installed, or what is no function
        return None
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in taken):
        return None
    return frozenset(parameter.name for parameter in taken)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _is_own(value: Any) -> bool:
    """Whether it is there, and not handed on from ``agentlightning``."""
    home = getattr(value, "__module__", "agl")
    return value is not None and not str(home).startswith("agentlightning")
