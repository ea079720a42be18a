"""``agl plugins check``: what is published, held to the contract suites of its kinds."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import click

from agl.errors import AglError, PluginError, UnknownComponentError
from agl.plugins.registry import Component, components, lacking, load_component
from agl.utils.text import did_you_mean

KEPT = "kept"


def check(offered: Sequence[Component], options: Mapping[str, Any]) -> list[dict[str, str]]:
    """Run the suites over components, with these options, in a process of pytest's.

    Returns:
        For each component: claim -> ``kept``, or ``skipped`` or ``broken`` and why.

    Raises:
        ConfigError: A component has no such option, or not with this value.
    """
    found = [_load(component, options) for component in offered]
    with TemporaryDirectory() as folder:
        for number, one in enumerate(offered):
            if not found[number]:
                (Path(folder) / f"test_{number}.py").write_text(_test(one, options))
        for case in _run_pytest(Path(folder)) if {} in found else ():
            file, test = case.get("classname", ""), case.get("name", "").partition("[")[0]
            number = int(file.partition(".")[0].removeprefix("test_"))
            claim, came = test.removeprefix("test_").replace("_", " "), KEPT
            for outcome in case:
                message = outcome.get("message", "").partition("\n")[0]
                if outcome.tag == "skipped":
                    came = f"skipped: {message}"
                elif message.startswith("failed on setup"):  # and so in each claim
                    cause = message.partition("It.component")[2].strip('.: "') or message
                    claim, came = "it loads", f"broken: {cause}"
                elif outcome.tag in ("failure", "error"):
                    about = getattr(_suite(offered[number]), test).__doc__
                    came = f"broken: {' '.join(about.split())} Got: {message}"
            if found[number].get(claim, KEPT) == KEPT:  # one of several parameters, perhaps
                found[number][claim] = came
    return found


def _load(component: Component, options: Mapping[str, Any]) -> dict[str, str]:
    """What is known before a suite runs; nothing if one can."""
    from agl.cli.plugins import try_component
    from agl.plugins.schema import schema_of, validate

    try:
        try_component(component)
    except AglError as error:
        return {"it loads": f"broken: {error}"}
    if _suite(component) is None:
        return {"it loads": KEPT}
    if lack := lacking(component):
        return {"what it works with is installed": f"skipped: needs {lack[0]}. Run: {lack[1]}"}
    given = {*options, "path"} if component.kind == "store" else options
    target = load_component(component)
    needs = [one for one in schema_of(target).options if one.required] if callable(target) else []
    missing = [f"{one.name}=..." for one in needs if one.name not in given]
    if options and not missing:  # what its user misspelt is no claim of the plugin's
        validate(target, options, f"{component.kind} {component.name}:")
    return {"its options are given": f"skipped: give {' '.join(missing)}"} if missing else {}


def _suite(component: Component) -> Any:
    kind = "hook" if component.kind == "plugin" else component.kind
    if find_spec(module := f"agl_testing.{kind}_contract") is None:
        return None
    return getattr(import_module(module), f"{kind.capitalize()}Contract")


def _test(component: Component, options: Mapping[str, Any]) -> str:
    template = (files("agl_testing") / "templates/test_contract.py.txt").read_text("utf-8")
    suite, name = _suite(component), component.name
    about = {"suite": suite.kind, "contract": suite.__name__, "name": name, "class_name": "It"}
    spec = {"type": name, **options} if options else name
    return Template(template).substitute(about, component=repr(spec))


def _run_pytest(folder: Path) -> list[ElementTree.Element]:
    report = folder / "report.xml"
    options = ["--rootdir=.", "-c", os.devnull, f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options]
    paths = os.pathsep.join(filter(None, sys.path))  # of whoever calls this from Python, too
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not report.exists():
        raise PluginError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
    return [*ElementTree.parse(report).iter("testcase")]


@click.command("check")
@click.argument("name")
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def command(ctx: click.Context, name: str, options: tuple[str, ...], as_json: bool) -> None:
    """Hold what NAME offers to the contract suites of its kinds; 1 if one breaks or none is kept.

    NAME is a component, KIND/NAME, or a distribution. The table is Markdown, for a README.
    """
    from rich import box, print as show
    from rich.table import Table

    from agl.cli.shared import print_json
    from agl_runs.config.overrides import apply_overrides

    given: dict[str, Any] = {}
    apply_overrides(given, options)
    installed = components()
    offered = [c for c in installed if name in (c.name, f"{c.kind}/{c.name}", c.distribution)]
    if not offered:
        hint = did_you_mean(name, {one for c in installed for one in (c.name, c.distribution)})
        raise UnknownComponentError(f"nothing installed is named {name!r}.{hint} See: agl plugins")
    found = [*zip(offered, check(offered, given), strict=True)]
    if as_json:
        print_json([{**vars(component), "claims": claims} for component, claims in found])
    else:
        table = Table("kind", "name", "version", "claims", box=box.MARKDOWN)
        for one, claims in found:
            kept = f"{[*claims.values()].count(KEPT)} of {len(claims)} kept"
            if skipped := sum(came.startswith("skipped") for came in claims.values()):
                kept += f", {skipped} skipped"
            table.add_row(one.kind, one.name, one.version, kept)
        show(table)
    not_kept = [(one, *each) for one, of in found for each in of.items() if each[1] != KEPT]
    for one, claim, came in () if as_json else not_kept:
        click.echo(f"{one.kind} {one.name!r}: {claim!r} is {came}")
    is_checked = any(KEPT in claims.values() for _, claims in found)
    if not is_checked or any(came.startswith("broken") for *_, came in not_kept):
        ctx.exit(1)
