"""Measure the public names of agentlightning 0.3 and print them as JSON.

    PEER/bin/python tests/compat/measure_names.py > tests/compat/names_of_0_3.json

Facts only: for every module path its names, their kinds, signatures, members, fields and plain
values; no source and no docstring. Modules that need a library that is not installed are imported
with a stand-in for it, and the library is named under ``stands_in``.
"""

import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import types
import typing
from typing import Any

TOP = "agentlightning"


class StandIn(types.ModuleType):
    """A module that is not installed: every name in it is a class of its own."""

    __path__ = ()  # pyright: ignore[reportAssignmentType]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            made: Any = Class(
                name,
                (),
                {
                    "__class_getitem__": classmethod(lambda cls, item: cls),
                    "__get_pydantic_core_schema__": classmethod(lambda *_: {"type": "any"}),
                },
            )
            made.__module__ = self.__name__
        else:
            made = Function()
        setattr(self, name, made)
        return made


class Class(type):
    """A class of a module that is not installed: has every method."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Function()


class Function:
    """A function of a module that is not installed: decorates by doing nothing."""

    __module__ = "stand.in"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return Function()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Function()

    def __get_pydantic_core_schema__(self, *_: Any) -> dict[str, str]:
        return {"type": "any"}


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find what nothing else finds, when agentlightning imports it."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.allowed: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in self.allowed:
            return None
        self.found.append(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def modules_of(package: types.ModuleType | str, path: Any) -> list[tuple[str, bool]]:
    """Every module path below a package, found without importing it."""
    found: list[tuple[str, bool]] = []
    for info in pkgutil.iter_modules(path):
        name = f"{package}.{info.name}"
        found.append((name, info.ispkg))
        if info.ispkg:
            found += modules_of(name, [os.path.join(next(iter(path)), info.name)])
    return found


def load(name: str, finder: StandInFinder) -> types.ModuleType:
    """Import a module, with stand-ins for the libraries that it lacks."""
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if not missing or missing == TOP or missing in finder.allowed:
                raise
            finder.allowed.add(missing)


def signature(value: Any) -> list[dict[str, Any]] | None:
    """The parameters of a callable: name, kind, and default as it prints."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters: list[dict[str, Any]] = []
    for parameter in found.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            entry["default"] = repr(default) if plain(default) else type(default).__name__
        parameters.append(entry)
    return parameters


def plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(plain(item) for item in value)
    if isinstance(value, enum.Enum):
        return True
    return value is None or isinstance(value, (str, int, float, bool))


def describe_class(value: type) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "class"}
    if isinstance(value, Class):
        return {"kind": "stand-in"}
    if issubclass(value, enum.Enum):
        return {"kind": "enum", "members": {m.name: m.value for m in value}}
    if typing.is_typeddict(value):
        return {"kind": "typed dict", "fields": sorted(value.__annotations__)}
    if isinstance(getattr(value, "model_fields", None), dict):
        facts["kind"] = "model"
        facts["fields"] = {
            name: ("required" if field.is_required() else repr(field.default))
            for name, field in value.model_fields.items()
        }
    elif issubclass(value, BaseException):
        facts["kind"] = "error"
    else:
        facts["signature"] = signature(value)
    facts["bases"] = [b.__name__ for b in value.__mro__[1:] if b.__module__.startswith(TOP)]
    methods: dict[str, Any] = {}
    for name in dir(value):
        if name.startswith(("_", "model_")):
            continue
        home = next((c for c in value.__mro__ if name in vars(c)), value)
        if not home.__module__.startswith(TOP):
            continue
        raw = vars(home)[name]
        if isinstance(raw, property):
            methods[name] = "property"
        elif callable(getattr(value, name)):
            methods[name] = signature(getattr(value, name))
    facts["methods"] = methods
    return facts


def describe(value: Any) -> dict[str, Any]:
    if isinstance(value, type):
        return describe_class(value)
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        kind = "coroutine function" if inspect.iscoroutinefunction(value) else "function"
        return {"kind": kind, "signature": signature(value)}
    if plain(value):
        return {"kind": "value", "value": repr(value)}
    return {"kind": type(value).__name__}


def owned(module: types.ModuleType, name: str, value: Any, listed: bool) -> bool:
    """Whether a name belongs to agentlightning, and not to a library that it imports."""
    if listed:
        return True
    if isinstance(value, types.ModuleType):
        return False
    home = getattr(value, "__module__", None)
    if isinstance(home, str) and not isinstance(value, typing.TypeVar):
        if home.startswith(TOP):
            return True
        return False if isinstance(value, type) or callable(value) else home == module.__name__
    # A value (a constant, an alias of types): libraries' constants are rarely imported by name.
    return not isinstance(value, (typing.TypeVar, typing.ParamSpec))


def main() -> None:
    sys.stdout, real = sys.stderr, sys.stdout
    finder = StandInFinder()
    sys.meta_path.append(finder)
    top = importlib.import_module(TOP)
    facts: dict[str, Any] = {}
    for name, is_package in [(TOP, True), *modules_of(TOP, top.__path__)]:
        before = set(finder.allowed)
        module = load(name, finder)
        # The module itself: of the same name as a function in its package, it may be hidden there.
        module = sys.modules[name]
        public = getattr(module, "__all__", None)
        names: dict[str, Any] = {}
        for attribute in sorted(set(public or []) | set(dir(module))):
            if attribute.startswith("_"):
                continue
            value = getattr(module, attribute)
            listed = attribute in (public or [])
            if not owned(module, attribute, value, listed):
                continue
            entry = describe(value)
            home = getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith(TOP) and home != name:
                entry = {"kind": entry["kind"], "from": home}
            names[attribute] = entry
        facts[name] = {
            "package": is_package,
            "all": sorted(public) if public is not None else None,
            "stands_in": sorted(finder.allowed - before),
            "names": names,
        }
    json.dump(facts, real, indent=1, sort_keys=True)
    real.write("\n")


if __name__ == "__main__":
    main()
