"""``agl plugins``: what is installed, in which state, and with which options."""

import inspect
import re
import shutil
from collections import defaultdict
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

import click

from agl.cli.shared import note, print_json, print_table
from agl.env import LightningEnvVar
from agl.errors import AglError, ConfigError, UnknownComponentError
from agl.plugins import registry
from agl.plugins.build import wrong_type
from agl.plugins.hooks import HookManager, load_plugin
from agl.plugins.parts import PARTS
from agl.plugins.registry import Component
from agl.plugins.schema import schema_of, with_inner
from agl.store.base import LightningStore
from agl.utils.catalogue import offered
from agl.utils.text import did_you_mean

State = Literal[
    "installed", "ok", "needs extra", "broken", "duplicate", "disabled", "unknown group"
]


@dataclass(frozen=True)
class Diagnosis(Component):
    """One row of ``agl plugins``."""

    state: State = "installed"
    """``installed`` was not imported; ``ok`` and the next two were, or could not be."""
    cause: str = ""


def diagnose(*, check: bool = False) -> list[Diagnosis]:
    """The state of everything that is installed.

    ``check`` imports each component, to tell ``ok`` from ``broken``; without it the answer comes
    from metadata alone, and is instant.
    """
    offers: defaultdict[tuple[str, str], list[Component]] = defaultdict(list)
    for component in registry.components():
        offers[component.group, component.name].append(component)
    rows = [
        Diagnosis(**vars(component), state=state, cause=cause)
        for same_name in offers.values()
        for component in same_name
        for state, cause in [_state(component, same_name, check)]
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
    if not check:
        return "installed", ""
    try:
        try_component(component)
    except AglError as error:
        return "broken", str(error).removeprefix(f"{component}").lstrip(": ")
    if lack := registry.lacking(component):
        return "needs extra", f"needs {lack[0]}. Run: {lack[1]}"
    return "ok", ""


def try_component(component: Component) -> None:
    """Import a component; of a hook plugin see whether its hooks are taken, or raise why not."""
    if component.kind == "plugin":
        HookManager().register(load_plugin(component), component.name)
        return
    target = registry.load_component(component)
    if component.kind not in PARTS or not inspect.isclass(target):  # a function may build one
        return
    base = PARTS[component.kind].expected_type
    if not issubclass(target, base):
        raise wrong_type(str(component), target, base)
    if issubclass(target, LightningStore) and target.call is LightningStore.call:
        methods = inspect.getmembers(LightningStore)
        declared = [name for name, method in methods if hasattr(method, "is_operation")]
        if lacking := [n for n in declared if getattr(target, n) is getattr(LightningStore, n)]:
            raise ConfigError(f"{component} has neither call() nor {', '.join(lacking)}")


# --- the command


class _Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return self.commands.get(cmd_name) or registry.load("agl.commands", f"plugins {cmd_name}")


@click.group("plugins", cls=_Group, invoke_without_command=True)
@click.option("--check", is_flag=True, help="Import each component, to tell ok from broken.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def command(ctx: click.Context, check: bool, as_json: bool) -> None:
    """List the installed components and hook plugins; with --check, 1 if one is broken.

    "needs extra": what it works with is not installed. agl-testing adds: agl plugins check NAME.
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = diagnose(check=check)
    columns = ["kind", "name", "distribution", "version", "state", "cause"]
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_table(columns, [[getattr(row, column) for column in columns] for row in rows])
    if not check:
        note("Nothing was imported; agl plugins --check tells ok from broken")
    elif any(row.state == "broken" for row in rows):
        ctx.exit(1)


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def show(name: str, as_json: bool) -> None:
    """Show the options of a component, NAME or KIND/NAME, with types, defaults and docs."""
    import docstring_parser

    component = _choose(name)
    target = registry.load_component(component)
    schema = schema_of(target) if callable(target) and component.kind != "command" else None
    described: dict[str, Any] = {
        **asdict(component),
        # Not inspect.getdoc: a class without a docstring is not what its base class is.
        "doc": docstring_parser.parse(inspect.cleandoc(target.__doc__ or "")).description or "",
        "takes_any_option": bool(schema and schema.open),
        "options": [
            {name: getattr(option, name) for name in ("name", "type", "required", "doc")}
            | {"default": None if option.required else option.default}
            for option in with_inner(schema.options if schema else ())
        ],
    }
    if as_json:
        print_json(described)
        return
    print(f"{component.kind} {component.name}, from {component.distribution} {component.version}")
    print(f"{component.target}\n\n{_reflowed(described['doc'])}")
    for one in described["options"]:
        is_given = "required" if one["required"] else f"default {one['default']!r}"
        print(f"\n{one['name']}: {one['type']}, {is_given}")
        print(_reflowed(one["doc"], "    "))
    if not described["options"]:
        print("\nThere are no options")


def _reflowed(text: str, indent: str = "") -> str:
    """Paragraphs as wide as the terminal, without the marks of reStructuredText."""
    parts = re.sub("`+", "", text).split("\n\n")
    # A list, or lines that stand as they are: click keeps what follows its mark.
    kept = ["\b\n" + part if "\n  " in part or part.startswith("- ") else part for part in parts]
    width = min(shutil.get_terminal_size().columns, 100)
    return click.formatting.wrap_text("\n\n".join(kept), width, indent, indent, True)


def _choose(name: str) -> Component:
    """The component that ``NAME`` or ``KIND/NAME`` means."""
    kind, slash, bare = name.rpartition("/")
    if slash and kind not in registry.GROUPS:
        hint = did_you_mean(kind, registry.GROUPS)
        raise ConfigError(f"unknown kind {kind!r}; one of {', '.join(registry.GROUPS)}.{hint}")
    groups = {group: one for one, group in registry.GROUPS.items() if kind in ("", one)}
    installed = [group for group in groups if bare in registry.names_in(group)]
    if len(installed) > 1:
        forms = " or ".join(sorted(f"{groups[group]}/{name}" for group in installed))
        raise ConfigError(f"{name!r} is the name of several: say {forms}")
    for group in [*installed, *(group for group in groups if slash or bare in offered(group))]:
        return registry.find(group, bare)  # says what to install if it is ours and is absent
    hint = did_you_mean(name, {component.name for component in registry.components()})
    raise UnknownComponentError(f"nothing installed is named {name!r}.{hint} See: agl plugins")
