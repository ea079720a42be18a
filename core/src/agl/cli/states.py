"""In which state each component is that is installed: what ``agl plugins`` lists."""

import time
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from inspect import getmembers, isclass
from typing import Literal

import agl
from agl.env import LightningEnvVar
from agl.errors import AglError, ConfigError, install_line
from agl.plugins import registry
from agl.plugins.build import wrong_type
from agl.plugins.hooks import HookManager, load_plugin
from agl.plugins.registry import Component
from agl.store.base import LightningStore
from agl.utils.text import did_you_mean

State = Literal[
    "installed", "ok", "needs extra", "broken", "duplicate", "disabled", "hidden", "unknown group"
]
BASES = {
    "algorithm": "Algorithm",
    "tracer": "Tracer",
    "adapter": "TraceAdapter",
    "store": "LightningStore",
    "strategy": "ExecutionStrategy",
    "gateway": "Gateway",
    "credit": "CreditRule",
}
"""Kind -> the name in ``agl`` of what its components inherit from."""
SLOW_SECONDS = 1.0


@dataclass(frozen=True)
class Diagnosis(Component):
    """One row of ``agl plugins``."""

    state: State = "installed"
    """``installed`` was not imported; ``ok`` and the next two were, or could not be."""
    cause: str = ""


def diagnose(*, check: bool = False) -> list[Diagnosis]:
    """The state of everything that is installed.

    Args:
        check: Whether to import each component, to tell ``ok`` from ``broken``. Without it the
            answer comes from metadata alone, and is instant.
    """
    offers: defaultdict[tuple[str, str], list[Component]] = defaultdict(list)
    for component in registry.components():
        offers[component.group, component.name].append(component)
    rows = [
        Diagnosis(**vars(c), state=state, cause=cause)
        for same_name in offers.values()
        for c in same_name
        for state, cause in [_state(c, same_name, check)]
    ]
    known = registry.GROUPS.values()
    for group in entry_points().groups - {*known}:
        for one in entry_points(group=group) if group.startswith("agl.") else ():
            assert one.dist is not None
            about = (group, one.name, one.dist.name, one.dist.version, one.value)
            cause = f"agl has no group {group!r}.{did_you_mean(group, known)}"
            rows.append(Diagnosis(*about, "unknown group", cause))
    return rows


def _state(component: Component, same_name: list[Component], check: bool) -> tuple[State, str]:
    if len(same_name) > 1:
        return "duplicate", registry.duplicate_cause(same_name)
    if component.kind == "plugin" and component.name in registry.disabled_plugins():
        return "disabled", f"{LightningEnvVar.AGL_DISABLE_PLUGINS.value} names it"
    if component.kind == "command" and find_spec(f"agl.cli.verbs.{component.name}"):
        return "hidden", f"'agl {component.name}' is the core's; choose another name"
    if not check:
        return "installed", ""
    began = time.monotonic()
    try:
        try_component(component)
    except AglError as error:
        return "broken", str(error).removeprefix(f"{component}").lstrip(": ")
    seconds = time.monotonic() - began
    if lacking := _lacking(component):
        return "needs extra", lacking
    return "ok", f"took {seconds:.1f} s to import" if seconds > SLOW_SECONDS else ""


def try_component(component: Component) -> None:
    """Import a component; of a hook plugin see whether its hooks are taken, or raise why not."""
    if component.kind == "plugin":
        HookManager().register(load_plugin(component), component.name)
        return
    target = registry.load_component(component)
    if component.kind not in BASES or not isclass(target):  # a function may build one
        return
    base = getattr(agl, BASES[component.kind])
    if not issubclass(target, base):
        raise wrong_type(str(component), target, base)
    if issubclass(target, LightningStore) and target.call is LightningStore.call:
        declared = [n for n, method in getmembers(LightningStore) if hasattr(method, "operation")]
        if lacking := [n for n in declared if getattr(target, n) is getattr(LightningStore, n)]:
            raise ConfigError(f"{component} has neither call() nor {', '.join(lacking)}")


def _lacking(component: Component) -> str:
    """What is not there of the extra that has the component's name, or is ``backend``."""
    from packaging.requirements import Requirement

    wanted = [*map(Requirement, requires(component.distribution) or [])]
    for extra in (component.name, "backend"):
        for one in wanted:
            if one.marker is None or not one.marker.evaluate({"extra": extra}):
                continue
            try:
                there = version(one.name)
            except PackageNotFoundError:
                there = "none"
            if there == "none" or not one.specifier.contains(there, prereleases=True):
                how = install_line(f"{component.distribution}[{extra}]")
                return f"needs {one.name}{one.specifier}; there is {there}. Run: {how}"
    return ""
