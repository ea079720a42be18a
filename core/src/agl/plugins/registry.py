"""Components by name: entry points found without importing them, loaded when they are named.

A component is a class (or a function that builds one) which a distribution publishes in the entry
point group of its kind; a hook that takes part in every run stands in the group ``agl.plugins``.
"""

import importlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from types import MappingProxyType
from typing import Any

from agl.env import LightningEnvVar
from agl.errors import (
    BrokenComponentError,
    ConfigError,
    DuplicateComponentError,
    MissingPluginError,
    PluginError,
    UnknownComponentError,
    install_line,
)
from agl.utils import catalogue
from agl.utils.text import did_you_mean

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "algorithm": "agl.algorithms",
        "tracer": "agl.tracers",
        "adapter": "agl.adapters",
        "store": "agl.stores",
        "strategy": "agl.strategies",
        "gateway": "agl.gateways",
        "gateway_client": "agl.gateway_clients",
        "credit": "agl.credits",
        "sandbox": "agl.sandboxes",
        "grader": "agl.graders",
        "reward": "agl.rewards",
        "environment": "agl.environments",
        "task_order": "agl.task_orders",
        "dialect": "agl.dialects",
        "metrics": "agl.metrics",
        "recorder": "agl.recorders",
        "command": "agl.commands",
        "hook": "agl.hooks",
        "plugin": "agl.plugins",
    }
)
"""Kind -> entry point group. All but the last hold components; the last holds hook plugins."""

_KINDS = {group: kind for kind, group in GROUPS.items()}


@dataclass(frozen=True)
class Component:
    """One published name; nothing of it has been imported."""

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    """``module:attribute``, as the entry point has it."""

    @property
    def group(self) -> str:
        """Of entry points."""
        return GROUPS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (plugin {self.distribution!r})"


def components(group: str | None = None) -> list[Component]:
    """Everything that is installed, of one group or of all, by kind and name.

    A name that two distributions offer stands there twice. An unknown group is a ``ConfigError``.
    """
    if group is not None and group not in _KINDS:
        hint = did_you_mean(group, _KINDS)
        known = ", ".join(_KINDS)
        raise ConfigError(f"unknown entry point group {group!r}; agl's are {known}.{hint}")
    # A folder's time changes when a distribution is installed there, so a notebook sees it.
    paths = (path or "." for path in sys.path)
    installed = _scan(tuple((one, os.path.getmtime(one)) for one in paths if os.path.exists(one)))
    return [c for c in installed if group in (None, c.group)]


def names_in(group: str) -> list[str]:
    """The names that can be given for a component of this group, sorted."""
    return sorted({c.name for c in components(group)})


def find(group: str, name: str) -> Component:
    """The component of this name.

    Raises:
        MissingPluginError: Nobody offers it, and a package of ours that is not installed has it.
        UnknownComponentError: Nobody offers it.
        DuplicateComponentError: Several distributions offer it.
    """
    offers = [c for c in components(group) if c.name == name]
    if not offers:
        names, ours = names_in(group), catalogue.offered(group)
        if name in ours:
            raise _absent(f"{_KINDS[group]} {name!r}", ours[name])
        raise UnknownComponentError(
            f"unknown {_KINDS[group]} {name!r}; installed: {', '.join(names) or 'none'}."
            f"{did_you_mean(name, {*names, *ours})} See: agl plugins"
        )
    if len(offers) > 1:
        raise DuplicateComponentError(duplicate_cause(offers))
    return offers[0]


def load(group: str, name: str) -> Any:
    """Import the component of this name; raises as ``find`` and ``load_component`` do."""
    return load_component(find(group, name))


def load_only(group: str) -> Any:
    """Import the first component of a group of which one is used, or say what to install."""
    return load(group, [*names_in(group), *catalogue.offered(group)][0])


def load_component(component: Component) -> Any:
    """Import a component that was found; a ``BrokenComponentError`` if that fails."""
    try:
        with stdout_to_stderr():
            loaded = EntryPoint(component.name, component.target, component.group).load()
    except PluginError:
        raise
    # A plugin may raise anything while it is imported, even SystemExit; it must break nobody else.
    except (Exception, SystemExit) as error:
        raise broken(component, error) from error
    if lacks := ", ".join(f"{one}()" for one in sorted(getattr(loaded, "__abstractmethods__", ()))):
        cause = f"does not load: class {loaded.__name__} lacks {lacks}"
        raise BrokenComponentError(f"{component} {cause}")
    return loaded


def stdout_to_stderr() -> AbstractContextManager[Any]:
    """What is printed while a plugin loads goes to stderr, as stdout is for data.

    Only in the main thread, where commands load plugins: elsewhere agents may print meanwhile.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return redirect_stdout(sys.stderr) if is_main else nullcontext()


def broken(component: Component, error: BaseException) -> BrokenComponentError:
    """Why a component does not work, and what to install if that is all it needs."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        cause = f"does not load: {type(error).__name__}: {error}"
    elif (top := missing.partition(".")[0]) == re.split(r"[.:]", component.target)[0]:
        how = install_line("--force-reinstall", component.distribution)
        cause = f"does not load: there is no module {missing!r}. Run: {how}"
    elif (lack := lacking(component, top)) is not None:
        cause = f"needs {top!r}, which is not installed. Run: {lack[1]}"
    else:
        cause = f"needs {top!r}, which is not installed, nor required by the plugin. Install it"
    return BrokenComponentError(f"{component} {cause}")


def lacking(component: Component, module: str | None = None) -> tuple[str, str] | None:
    """What a component needs and is not there, and how to install it; None if all is there.

    Looked for in the extra of its name, in ``backend`` and, given a ``module`` that is missing, in
    extras that name it and among what is always required.
    """
    from packaging.requirements import Requirement

    of = Distribution.from_name(component.distribution)
    own = [component.name, "backend"]
    others = [] if module is None else [*(of.metadata.get_all("Provides-Extra") or []), ""]
    for extra in (*own, *others):
        for one in map(Requirement, of.requires or []):
            if not (one.marker.evaluate({"extra": extra}) if one.marker else extra == ""):
                continue
            if (
                extra not in (*own, "")
                and one.name.replace("-", "_").lower() != str(module).lower()
            ):
                continue
            there = next((each.version for each in distributions(name=one.name)), "none")
            if there == "none" or not one.specifier.contains(there, prereleases=True):
                wanted = f"{component.distribution}[{extra}]" if extra else component.distribution
                return f"{one.name}{one.specifier}; there is {there}", install_line(wanted)
    return None


def load_public_name(name: str, own: Iterable[str]) -> Any:
    """What ``agl.<name>`` is, if that is a component or lives in a library; ``own`` are others.

    Raises:
        MissingPluginError: It is not installed; the message says what to install.
        AttributeError: There is no such name; ImportError where ``from agl import`` asks.
    """
    components, libraries = map(catalogue.public_names, ("components", "libraries"))
    if name in components:
        group, entry = components[name]
        try:
            return load(group, entry)
        except MissingPluginError:
            raise _absent(f"agl.{name}", catalogue.offered(group)[entry]) from None
    if name in libraries:
        top = libraries[name].partition(".")[0]
        try:
            return getattr(importlib.import_module(libraries[name]), name)
        except ModuleNotFoundError as error:
            if error.name != top:
                raise
            raise _absent(f"agl.{name}", top.replace("_", "-")) from None
    return catalogue.refuse_name("agl", name, {*own, *components, *libraries})


def _absent(what: str, package: str) -> MissingPluginError:
    return MissingPluginError(
        f"{what} lives in {package}, which is not installed. Run: {install_line(package)}"
    )


def disabled_plugins() -> frozenset[str]:
    """Names of hook plugins that ``AGL_DISABLE_PLUGINS`` drops."""
    value = os.environ.get(LightningEnvVar.AGL_DISABLE_PLUGINS.value, "")
    return frozenset(name.strip() for name in value.split(","))


def duplicate_cause(offers: list[Component]) -> str:
    """Why a name that several distributions offer is no component."""
    dists = " and ".join(f"{c.distribution!r}" for c in offers)
    one = offers[0]
    another_way = {
        "command": "",
        "plugin": f", or leave both out: AGL_DISABLE_PLUGINS={one.name}",
    }.get(one.kind, f", or name the class itself, as {one.target!r}")
    return f"{one.kind} {one.name!r} is offered by {dists}. Uninstall one of them{another_way}"


@lru_cache(maxsize=4)
def _scan(path: tuple[tuple[str, float], ...]) -> tuple[Component, ...]:
    importlib.invalidate_caches()
    installed = entry_points()
    found: list[Component] = []
    about: dict[Distribution, Any] = {}  # to ask for a name is to parse all the metadata
    for kind, group in GROUPS.items():
        for entry in installed.select(group=group):
            if (dist := entry.dist) is not None:
                of = about[dist] if dist in about else about.setdefault(dist, dist.metadata)
                found.append(Component(kind, entry.name, of["Name"], of["Version"], entry.value))
    found.sort(key=lambda c: ([*GROUPS].index(c.kind), c.name, c.distribution))
    return tuple(found)
