"""The line that installs packages from a clone, run with pip in clean environments."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.interpreter import python

from agl.errors import install_line

CLONE = Path(__file__).parents[2]
ALL = sorted(["agl-core", "agl-agentlightning", *(path.name for path in CLONE.glob("[lp]*/agl-*"))])

OF_ALGORITHMS = {
    *("agl-adapters", "agl-core", "agl-http", "agl-learning", "agl-models", "agl-processes"),
    *("agl-records", "agl-runs", "agl-server", "agl-sqlite", "agl-tracers"),
}
"""What each algorithm brings."""


@pytest.mark.nightly  # test_third_party_plugin.py installs on each push
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("package", "ours", "works"),
    [
        ("agl-apo", {"agl-apo", "agl-views", *OF_ALGORITHMS}, "algorithm apo"),
        ("agl-verl", {"agl-gateway", "agl-verl", *OF_ALGORITHMS}, "gateway proxy"),
        ("agl-torch", {"agl-gateway", "agl-torch", *OF_ALGORITHMS}, "algorithm grpo"),
        ("agl-core", {"agl-core"}, "store memory"),
        (
            "agl-core[apo]",
            {"agl-apo", "agl-inspect", "agl-ui", "agl-views", *OF_ALGORITHMS},
            "command ui",
        ),
    ],
)
def test_one_line_installs_a_package_with_all_that_it_needs(package, ours, works, tmp_path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"

    def run(*command: str | Path) -> str:
        # Nothing of this environment may leak into the clean one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AGL_"))}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The build of torch that we test, where pip finds it, is a hundredth of the newest's size.
    torch = ["torch==2.13.0"] if package == "agl-torch" else []
    run(python, CLONE / "install.py", "--quiet", package, *torch)
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    assert {each["name"] for each in listed if each["name"].startswith("agl-")} == ours
    rows = json.loads(run(python.with_name("agl"), "plugins", "--check", "--json"))
    states = {f"{row['kind']} {row['name']}": row["state"] for row in rows}
    assert states[works] == "ok"


def test_the_extra_all_is_every_plugin_and_the_page_tells_of_each_job() -> None:
    project = tomllib.loads((CLONE / "core/pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    plugins = {path.name for path in CLONE.glob("plugins/agl-*")}
    assert {Requirement(one).name for one in extras["all"]} == plugins
    page = (CLONE / "docs/howto/install.md").read_text("utf-8")
    assert [name for name in extras if f"agl-core[{name}]" not in page] == []


def install(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(CLONE / "install.py", *arguments)


def test_of_a_package_elsewhere_it_installs_what_that_needs_of_the_clone(tmp_path, monkeypatch):
    """No index has it, so ``pip install -e .`` finds none of it, or what anybody put there."""
    monkeypatch.syspath_prepend(CLONE)
    from install import FOLDERS, from_clone

    project = """
        [project]
        name = "agl-mine"
        dependencies = ["agl-core~=0.1.0", "agl-records", "agl-other>=1", "click"]
        [project.optional-dependencies]
        test = ["agl-core[testing]~=0.1.0"]
    """
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    core, records, testing = (str(FOLDERS[f"agl-{one}"]) for one in ("core", "records", "testing"))
    assert from_clone("-e", ".")[:4] == ["-e", ".", core, records]
    assert testing in {one.partition("[")[0] for one in from_clone("-e", ".[test]")}
    assert from_clone("click", "./nowhere") == ["click", "./nowhere"]


def test_without_a_name_it_says_how_it_is_used() -> None:
    assert "python install.py agl-torch" in install().stderr


def test_messages_send_nobody_to_an_index_for_names_that_anybody_may_take() -> None:
    """Of the package itself, and of its extras, with or without options."""
    assert len(ALL) > 15
    for arguments in (["--force-reinstall", name] for name in ALL):
        assert install_line(*arguments) == (
            f"python install.py {' '.join(arguments)} "
            f"(in a clone of agl: no package index has {arguments[-1]})"
        )
    assert "pip" not in install_line("agl-apo[gepa]")
    assert install_line("agl-bestprompt") == "pip install agl-bestprompt"


def test_no_source_or_page_says_by_itself_how_a_package_of_ours_is_installed() -> None:
    said = re.compile(r"pip(?! uninstall)[\s\w\"-]*install[^\n]{0,40}\bagl-(?!x\b)")
    kinds = ("core", "libs", "plugins", "compat", "examples", "docs")
    read = [CLONE / "README.md", *(path for kind in kinds for path in (CLONE / kind).rglob("*"))]
    assert [
        str(path)
        for path in read
        if path.suffix == ".md" or (path.suffix == ".py" and "src" in path.parts)
        if said.search(path.read_text("utf-8"))
    ] == []


def test_without_pip_and_uv_it_says_what_to_do_after_it_has_read_the_names(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)

    def said(package: str) -> str:
        done = subprocess.run(
            [str(python), str(CLONE / "install.py"), package],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        return done.stderr

    assert f"Run: python3 -m pip --python {python} install pip" in said("agl-core")
    assert said("agl-tirch").startswith("agl-tirch: not in this clone")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("agl-core[grp]", "agl-core has no extra 'grp'; it has jinja, "),
        # a name of an index
        ("agl_cor", f"agl-cor: not in this clone, which has {', '.join(ALL)}\n"),
    ],
)
def test_what_the_clone_has_not_is_not_asked_of_an_index(package, says):
    ended = install(package)
    assert (ended.returncode, says in ended.stderr) == (1, True), ended.stderr
