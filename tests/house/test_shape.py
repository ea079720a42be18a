"""The tower stays as small as it was built."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
AGL = ROOT / "core/src/agl"
DISTRIBUTIONS = [
    path for kind in ("core", "libs/*", "plugins/*", "compat/*") for path in sorted(ROOT.glob(kind))
]
ROOMS, LINES = 16, 400
MOST_IN_THE_CORE = 12_590
"""Lines, to come down to 12,500. It only goes down."""
MOST_SLOW = 12
"""Marks of tests that may take longer than `tests/cpu_budget.py` says. It only goes down."""
TOO_LONG: set[str] = set()
"""Modules that hold a second idea; names go from here, none come."""


def projects() -> list[dict[str, Any]]:
    files = [root / "pyproject.toml" for root in DISTRIBUTIONS]
    return [tomllib.loads(file.read_text("utf-8"))["project"] for file in files]


def test_what_git_keeps_is_written_here():
    """Somebody else's packages are installed, and what programs make is made again."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("no clone of git")
    kept = [ROOT / name for name in filter(None, listed.stdout.split("\0"))]
    there = [path for path in kept if path.is_file()]
    assert [path for path in there if {"node_modules", "__pycache__", "dist"} & {*path.parts}] == []
    assert [path for path in there if path.stat().st_size > 500_000] == []


def test_a_fragment_of_the_changelog_has_30_words_at_most():
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / "changelog.d").glob("*.*.md")}
    assert [name for name, text in texts.items() if len(text.split()) > 30] == []


def test_top_level_has_few_rooms():
    modules = set(AGL.rglob("*.py")) - {AGL / "__init__.py"}
    assert len({path.relative_to(AGL).parts[0] for path in modules}) <= ROOMS


def test_rooms_are_those_of_the_page():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["agl"])
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    table = page.partition("| room | what is in it |")[2].partition("\n\n")[0]
    rooms = [re.findall("`(.*?)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert [room for row in rooms for room in row] == [
        room.strip() for layer in layers for room in layer.split("|")
    ]


def test_modules_that_a_readme_lists_are_there():
    for root in DISTRIBUTIONS:
        _, _, table = (root / "README.md").read_text(encoding="utf-8").partition("| module |")
        first_cells = (line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:])
        for module in (name for cell in first_cells for name in re.findall("`(.*?)`", cell)):
            path = root / "src" / root.name.replace("-", "_") / module.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"{root.name}: {module}"


def test_wheels_that_a_page_names_are_all_that_they_need():
    # pip takes what is missing from an index, where anybody may register our names.
    needs = {
        one["name"]: {Requirement(each).name for each in one["dependencies"]} for one in projects()
    }
    page = (ROOT / "docs/howto/install.md").read_text(encoding="utf-8")
    words = re.search(r"pip install dist/agl_\{(.*?)\}", page)
    named = {f"agl-{word}" for word in words[1].split(",")}
    assert {need for name in named for need in needs[name] & needs.keys()} <= named


def test_ci_runs_tests_with_other_releases_where_a_package_that_they_need_changed(tmp_path):
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    script = f"""set -euo pipefail
        {re.search(r"^changed.*?^}", text, re.MULTILINE | re.DOTALL)[0]}
        mkdir -p libs/agl-x/src plugins/agl-y && touch libs/agl-x/src/x.py
        echo 'dependencies = ["agl-x~=0.1.0"]' > plugins/agl-y/pyproject.toml
        git init -q && git add . && base=$(git write-tree)
        changed before plugins/agl-y && echo 1 > libs/agl-x/src/x.py && changed after plugins/agl-y
    """
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout, "[before] nothing" in run.stderr) == ("after\n", True), run.stderr


def test_core_does_not_grow():
    files = [*AGL.rglob("*.py"), *AGL.rglob("*.pyi")]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_IN_THE_CORE


def test_no_room_below_the_trainer_asks_for_the_lazy_names():
    for path in AGL.rglob("*.py"):
        if path.relative_to(AGL).parts[0] not in ("cli", "adapter.py", "__init__.py"):
            asks = re.search(r"^\s*(import agl|from agl import .*)$", path.read_text("utf-8"), re.M)
            assert asks is None, path


def test_modules_are_short():
    sources = [path for root in DISTRIBUTIONS for path in root.glob("src/**/*.py")]
    long = {path for path in sources if len(path.read_text("utf-8").splitlines()) > LINES}
    assert {str(path.relative_to(ROOT)) for path in long} == TOO_LONG


def test_imports_of_every_distribution_are_checked():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tops = [path for root in DISTRIBUTIONS for path in root.glob("src/*/__init__.py")]
    packages = {path.parent.name for path in tops}
    rules = settings["tool"]["importlinter"]
    assert packages == set(rules["root_packages"])
    exhaustive = [contract for contract in rules["contracts"] if contract.get("exhaustive")]
    layered = [name for contract in exhaustive for name in contract["containers"]]
    plugins = {path.parent.name for path in ROOT.glob("plugins/*/src/*/__init__.py")}
    split = {"agl_learning", "agl_models", "agl_records", "agl_views"}
    assert sorted(layered) == sorted({"agl", *split, *plugins})


def test_what_the_core_alone_skips_runs_with_the_plugins():
    needs_more = re.compile(r'importorskip\("(torch|agl_(?!testing))')
    folders = [ROOT / "tests" / name for name in ("core", "libs", "contract", "house")]
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    skipping = [path for path in files if needs_more.search(path.read_text("utf-8"))]
    assert skipping
    assert [p.name for p in skipping if "pytest.mark.plugins" not in p.read_text("utf-8")] == []


def test_few_tests_take_longer_than_a_test_may():
    marks = [
        path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if not {"real", "examples", "house"} & {*path.parts}
        for _ in re.findall(r"mark\.slow\b", path.read_text("utf-8"))
    ]
    assert len(marks) <= MOST_SLOW, sorted(marks)


def test_every_benchmark_runs_at_night():
    benchmarks = ROOT / "benchmarks"
    parts = {"run_all.py", "gateway_ours.py", "gateway_peer.py", "gateway_parts.py", "apo_peer.py"}
    main = 'if __name__ == "__main__"'
    programs = {path.name for path in benchmarks.glob("*.py") if main in path.read_text("utf-8")}
    together = (benchmarks / "run_all.py").read_text(encoding="utf-8")
    run = set(re.findall(r"^\w+\.py", together, re.MULTILINE)) | {"resume.py"}
    assert run == programs - parts


def test_packages_require_each_other_in_the_minor_version_that_they_have():
    """And where several require one library, they agree on the oldest that is good enough."""
    versions = {project["name"]: project["version"] for project in projects()}
    lists = [project["dependencies"] for project in projects()]
    lists += [one for each in projects() for one in each.get("optional-dependencies", {}).values()]
    wanted = [Requirement(line) for lines in lists for line in lines]
    ours = {(one.name, str(one.specifier)) for one in wanted if one.name in versions}
    assert ours == {(name, f"~={versions[name]}") for name, _ in ours}
    assert len(ours) > 10
    jinja = {str(one.specifier) for one in wanted if one.name == "jinja2"}
    assert jinja == {">=3.1.6"}  # the release that closed the holes of its sandbox
