"""``agl new``: a package with one component, whose tests are its contract suite.

``templates`` has a file for each kind, and what all kinds share once.
"""

import ast
import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from agl import __version__
from agl.cli.shared import note
from agl.errors import ConfigError
from agl.plugins.registry import GROUPS, components

KINDS = (
    *("algorithm", "trainer", "tracer", "adapter", "dialect", "store", "credit", "strategy"),
    "hook",
)
"""A trainer is an algorithm that trains weights."""
NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
USED_BY_NAME = {"trainer": {"agl_adapters", "agl_gateway"}}
"""Packages that a kind needs and does not import."""


@click.command("new")
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to write; else agl-NAME.")
def command(kind: str, name: str, folder: Path | None) -> None:
    """Write the package agl-NAME with a component of KIND, which passes its contract suite.

    KIND is algorithm, trainer, tracer, adapter, dialect, store, credit, strategy or hook.
    """
    name = name.removeprefix("agl-")
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name: write small letters, digits and -, as best-prompt")
    group = GROUPS["algorithm" if kind == "trainer" else kind]
    for taken in components(group):
        if taken.name == name:
            raise ConfigError(f"{taken} has this name already; take another one")
    folder = folder or Path(f"agl-{name}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name another one with --folder")
    package = render(kind, name, group)
    for path, text in package.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        click.echo(folder / path)
    install = shlex.join(["python", "install.py", "-e", f"{folder.absolute()}[test]"])
    note(f"Next: {install} (in a clone of agl); there: pytest && agl plugins check {name}")


def render(kind: str, name: str, group: str) -> dict[str, str]:
    """The files of a package, by path."""
    templates = files("agl_testing") / "templates"
    suite = "algorithm" if kind == "trainer" else kind
    values = {
        "name": name,
        "module": f"agl_{name.replace('-', '_')}",
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "component": repr(name).replace("'", '"'),
        "suite": suite,
        "contract": f"{suite.capitalize()}Contract",
        "group": group,
        "kind": kind,
        "release": ".".join([*__version__.split(".")[:2], "0"]),
    }

    def filled(template: str) -> str:
        return Template((templates / template).read_text(encoding="utf-8")).substitute(values)

    source = filled(f"{kind}.py.txt")
    imported = re.findall(r"^(?:from|import) (agl_\w+)", source, re.MULTILINE)
    packages = {"agl", *imported, *USED_BY_NAME.get(kind, ())}
    names = sorted(one.replace("_", "-") if one != "agl" else "agl-core" for one in packages)
    values["dependencies"] = ", ".join(f'"{one}~={values["release"]}"' for one in names)
    values["about"] = (ast.get_docstring(ast.parse(source)) or "").replace("::", ":")
    return {
        "pyproject.toml": filled("pyproject.toml.txt"),
        "README.md": filled("README.md.txt"),
        ".github/workflows/tests.yml": filled("tests.yml.txt"),
        f"src/{values['module']}/__init__.py": source,
        "tests/test_contract.py": filled(
            f"test_{'dialect' if kind == 'dialect' else 'contract'}.py.txt"
        ),
    }
