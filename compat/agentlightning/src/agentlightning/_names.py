"""How the modules of agentlightning hand on names: when they are used, or refused with words."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, TypeVar, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

T = TypeVar("T")

TOP = "agentlightning"
HOMES = (
    "",
    "semconv",
    "types.core",
    "types.resources",
    "types.tracer",
    "store.base",
    "utils.otel",
    "algorithm.utils",
    "trainer.init_utils",
    "utils.id",
    "utils.metrics",
    "utils.server_launcher",
    "utils.system_snapshot",
    "execution.base",
    "instrumentation",
    "llm_proxy",
    "verl.entrypoint",
)
"""Where the modules of the original import names from; they can be imported from those, too."""


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are listed in its ``.pyi``."""
    load, listing, names = cast(Any, lazy_loader).attach_stub(package, file)
    other = rest(package)

    def __getattr__(name: str) -> Any:
        return load(name) if name in names else other(name)

    return __getattr__, listing


def without_absent(names: list[str]) -> list[str]:
    """The names that a star import gives: none of a plugin that is not installed."""
    plugins = {"APO": "agl_apo", "VERL": "agl_verl"}
    return [n for n in names if n not in plugins or find_spec(plugins[n]) is not None]


def rest(module: str) -> Callable[[str], Any]:
    """``__getattr__`` of a module: what is not written in it.

    That is its submodules, names that the original's module has because it imports them, and names
    that are refused.
    """

    def __getattr__(name: str) -> Any:
        if not name.startswith("_"):
            from agentlightning._refused import REFUSED

            path = module.removeprefix(TOP).removeprefix(".")
            if name in REFUSED.get(path, ()):
                refuse(module, name, REFUSED[path][name])
            is_package = hasattr(sys.modules[module], "__path__")
            if is_package and find_spec(f"{module}.{name}") is not None:
                return import_module(f"{module}.{name}")
            for home in HOMES:
                if home != path and _has(home, name):
                    return getattr(import_module(f"{TOP}.{home}".rstrip(".")), name)
            for refused in REFUSED.values():
                if name in refused:
                    refuse(module, name, refused[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def _has(home: str, name: str) -> bool:
    return name in dir(import_module(f"{TOP}.{home}".rstrip(".")))


def refuse(module: str, name: str, why: str) -> NoReturn:
    """Say that agl does not have a name, and what to use; called by ``__getattr__`` of a module.

    Raises:
        RefusedImportError: ``from module import name`` asks, which would drop the words of an
            AttributeError.
        RefusedAttributeError: Else.
    """
    from agentlightning._errors import RefusedAttributeError, RefusedImportError

    kind = RefusedImportError if _asked_by_import() else RefusedAttributeError
    raise kind(f"{module}.{name} is not in agl: {why}")


def _asked_by_import() -> bool:
    """Whether the ``__getattr__`` that is running was called by ``from module import name``."""
    import dis

    asking = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while asking.f_code.co_name != "__getattr__" and asking.f_back is not None:
        asking = asking.f_back
    while asking.f_code.co_name == "__getattr__" and asking.f_back is not None:
        asking = asking.f_back
    return dis.opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM"


def refusing(**reasons: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class whose original has more methods: asking for one says what to use instead."""

    def decorate(cls: type[T]) -> type[T]:
        cls._refused_names = frozenset(reasons)  # pyright: ignore[reportAttributeAccessIssue]
        for name, why in reasons.items():
            setattr(cls, name, _RefusedMethod(f"{cls.__name__}.{name} is not in agl: {why}"))
        return cls

    return decorate


class _RefusedMethod:
    """Says what to use instead, for the class as for its instances."""

    def __init__(self, about: str) -> None:
        self._about = about

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._about)
