"""In which state each component is that is installed: what ``agl plugins`` lists."""

from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal

from agl.env import LightningEnvVar
from agl.errors import AglError, install_line
from agl.plugins import registry
from agl.plugins.hooks import HookManager, load_plugin
from agl.plugins.registry import Component

State = Literal["installed", "ok", "needs extra", "broken", "duplicate", "disabled"]


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
    return [
        Diagnosis(**vars(c), state=state, cause=cause)
        for same_name in offers.values()
        for c in same_name
        for state, cause in [_state(c, same_name, check)]
    ]


def _state(component: Component, same_name: list[Component], check: bool) -> tuple[State, str]:
    if len(same_name) > 1:
        return "duplicate", registry.duplicate_cause(same_name)
    if component.kind == "plugin" and component.name in registry.disabled_plugins():
        return "disabled", f"{LightningEnvVar.AGL_DISABLE_PLUGINS.value} names it"
    if not check:
        return "installed", ""
    try:
        try_component(component)
    except AglError as error:
        return "broken", str(error).removeprefix(f"{component} ")
    lacking = _lacking(component)
    return ("needs extra", lacking) if lacking else ("ok", "")


def try_component(component: Component) -> None:
    """Import a component; of a hook plugin see whether its hooks are taken, or raise why not."""
    if component.kind == "plugin":
        HookManager().register(load_plugin(component), component.name)
    else:
        registry.load_component(component)


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
