"""``agl plugins``: what is installed, in which state, and with which options."""

import re
from typing import Any

import click


@click.group("plugins", invoke_without_command=True)
@click.option("--check", is_flag=True, help="Import each component, to tell ok from broken.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def command(ctx: click.Context, check: bool, as_json: bool) -> None:
    """List the installed components and hook plugins; with --check, 1 if one is broken.

    "needs extra": it loads, and what it works with is not installed.
    """
    if ctx.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from agl.cli.shared import note, print_json, print_table
    from agl.cli.states import diagnose

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
    from agl.cli.shared import print_json
    from agl.plugins import registry

    component = _choose(name)
    target = registry.load_component(component)
    described = _describe(component, target)
    if as_json:
        print_json(described)
        return
    print(f"{component.kind} {component.name}, from {component.distribution} {component.version}")
    print(f"{component.target}\n\n{_reflowed(described['doc'])}")
    for one in described["options"]:
        is_given = "required" if one["required"] else f"default {one['default']!r}"
        print(f"\n{one['name']}: {one['type']}, {is_given}")
        print(_reflowed(one["doc"] or "", "    "))
    if not described["options"]:
        print("\nThere are no options")


def _reflowed(text: str, indent: str = "") -> str:
    """Paragraphs as wide as the terminal, without the marks of reStructuredText."""
    import shutil

    parts = re.sub("`+", "", text).split("\n\n")
    # A list, or lines that stand as they are: click keeps what follows its mark.
    kept = ["\b\n" + part if "\n  " in part or part.startswith("- ") else part for part in parts]
    width = min(shutil.get_terminal_size().columns, 100)
    return click.formatting.wrap_text("\n\n".join(kept), width, indent, indent, True)


def _choose(name: str) -> Any:
    """The component that ``NAME`` or ``KIND/NAME`` means."""
    from agl.errors import ConfigError, UnknownComponentError
    from agl.plugins import registry
    from agl.utils.catalogue import offered
    from agl.utils.text import did_you_mean

    kind, slash, bare = name.rpartition("/")
    if slash:
        if kind not in registry.GROUPS:
            hint = did_you_mean(kind, registry.GROUPS)
            raise ConfigError(f"unknown kind {kind!r}; one of {', '.join(registry.GROUPS)}.{hint}")
        return registry.find(registry.GROUPS[kind], bare)
    offers = [c for c in registry.components() if c.name == name]
    kinds = sorted({c.kind for c in offers})
    if not offers:
        for group in registry.GROUPS.values():
            if name in offered(group):
                registry.find(group, name)  # says what to install
        hint = did_you_mean(name, {c.name for c in registry.components()})
        raise UnknownComponentError(f"nothing installed is named {name!r}.{hint} See: agl plugins")
    if len(kinds) > 1:
        forms = " or ".join(f"{kind}/{name}" for kind in kinds)
        raise ConfigError(f"{name!r} is the name of several: say {forms}")
    return registry.find(offers[0].group, name)


def _describe(component: Any, target: Any) -> dict[str, Any]:
    import inspect
    from dataclasses import asdict

    import docstring_parser

    from agl.plugins.schema import schema_of

    # Not inspect.getdoc: a component's class without a docstring is not what its base class is.
    doc = docstring_parser.parse(inspect.cleandoc(target.__doc__ or ""))
    text = [part for part in (doc.short_description, doc.long_description) if part]
    schema = schema_of(target) if callable(target) and component.kind != "command" else None
    return {
        **asdict(component),
        "doc": "\n\n".join(text),
        "takes_any_option": bool(schema and schema.open),
        "options": [
            {
                "name": option.name,
                "type": option.type,
                "required": option.required,
                "default": None if option.required else option.default,
                "doc": option.doc,
            }
            for option in (schema.options if schema else ())
        ],
    }
