"""``agl migrate``: from agentlightning to agl."""

import json
import tokenize
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import click

from agentlightning._migrate.changes import Finding
from agentlightning._migrate.script import Bound, migrate
from agl.cli.shared import note, print_json


@click.command("migrate")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--write", is_flag=True, help="Change the files; without it they are only read.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(paths: tuple[Path, ...], write: bool, as_json: bool) -> None:
    """Say what to change in scripts of agentlightning so that they use agl itself.

    PATHS are scripts, notebooks, and folders of both. Each line names a place: ``change`` is what
    --write does, ``look`` is for you. Whatever agl does not have goes on coming from
    agentlightning.
    """
    found: list[dict[str, Any]] = []
    changed: list[Path] = []
    for path in _scripts(paths):
        try:
            text, findings = _read(path)
        except (SyntaxError, UnicodeDecodeError, json.JSONDecodeError) as error:
            line = getattr(error, "lineno", None) or 1
            text, findings = (
                None,
                [(0, Finding(line, "look", path.name, None, f"not read: {error}"))],
            )
        found += [{"file": str(path), "cell": cell or None, **asdict(f)} for cell, f in findings]
        if text is not None and any(f.kind == "change" for _, f in findings):
            changed.append(path)
            if write:
                path.write_bytes(text.encode())
    if as_json:
        print_json(found)
    else:
        for each in found:
            click.echo(_line(each))
    to_look = sum(each["kind"] == "look" for each in found)
    done = "changed" if write else "to change with --write"
    note(f"{len(changed)} files {done}; {to_look} places to look at")


def _scripts(paths: tuple[Path, ...]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for each in inside:
            hidden = any(part.startswith(".") for part in each.relative_to(path).parts)
            if each.is_file() and not hidden and (each == path or each.suffix in (".py", ".ipynb")):
                found.setdefault(each)
    return list(found)


def _read(path: Path) -> tuple[str, list[tuple[int, Finding]]]:
    """The file as it is to be, and what was found: number of the cell, or 0, and the finding."""
    if path.suffix != ".ipynb":
        with tokenize.open(path) as file:
            encoding = file.encoding
        source = path.read_bytes().decode(encoding)
        text, findings = migrate(source)
        return text, [(0, finding) for finding in findings]
    notebook = json.loads(path.read_text("utf-8"))
    bound, findings = Bound(), list[tuple[int, Finding]]()
    for number, cell in enumerate(notebook.get("cells", ()), start=1):
        if cell.get("cell_type") != "code":
            continue
        is_list = isinstance(cell["source"], list)
        source = "".join(cell["source"])
        hidden, lines = _without_magic(source)
        text, of_cell = migrate(hidden, bound)
        for line, said in lines.items():
            text = text.replace(line, said, 1)
        findings += [(number, finding) for finding in of_cell]
        cell["source"] = text.splitlines(keepends=True) if is_list else text
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", findings


def _without_magic(source: str) -> tuple[str, dict[str, str]]:
    """A cell as Python: lines for the shell or for IPython become comments, until later."""
    lines: dict[str, str] = {}
    out = StringIO()
    for number, line in enumerate(source.splitlines(keepends=True)):
        bare = line.strip()
        if bare.startswith(("%%", "!", "%", "?")):
            indent = line[: len(line) - len(line.lstrip())]
            mark = f"pass  # agl-migrate-{number}-"
            lines[mark] = bare
            out.write(f"{indent}{mark}" + ("\n" if line.endswith("\n") else ""))
            if bare.startswith("%%") and number == 0 and not bare.startswith("%%time"):
                return f"{mark}\n", {f"{mark}\n": source}  # another language
        else:
            out.write(line)
    return out.getvalue(), lines


def _line(each: dict[str, Any]) -> str:
    cell = f", cell {each['cell']}" if each["cell"] else ""
    what = each["what"].replace("\n", " ")
    if each["kind"] == "change":
        what += f"  ->  {each['becomes'] or '(nothing)'}".replace("\n", "; ")
    return f"{each['file']}{cell}:{each['line']}: {each['kind']}: {what}  ({each['why']})"
