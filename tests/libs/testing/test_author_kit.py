"""``agl new`` and ``agl plugins check``: what an author writes with, in the order of the page."""

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from tests.interpreter import python
from tests.run_project import succeeds

from agl.plugins.parts import PARTS
from agl.plugins.registry import GROUPS, load
from agl_testing.new_package import KINDS

ROOT = Path(__file__).parents[3]
QUICK = ("adapter", "credit", "dialect", "hook")
MARKED = [
    pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.plugins, pytest.mark.nightly])
    for kind in KINDS
]


@pytest.fixture
def write(agl, tmp_path, monkeypatch):
    """``write("credit")``: the folder of a new package, which this and other processes find."""

    def write(kind: str) -> Path:
        folder = tmp_path / kind
        made = agl("new", kind, f"my-{kind}", "--folder", str(folder))
        assert made.code == 0, made.err
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / f"src/agl_my_{kind}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
        [(group, entries)] = project["entry-points"].items()
        published = "".join(f"{name} = {target}\n" for name, target in entries.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{published}")
        monkeypatch.syspath_prepend(folder / "src")
        return folder

    yield write
    for name in [name for name in sys.modules if name.startswith("agl_my_")]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", MARKED)
def test_new_package_passes_its_tests_and_is_used_by_its_name(write, kind):
    if kind == "trainer":
        pytest.importorskip("agl_gateway")  # the package names it
    folder = write(kind)
    paths = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
    options = ("-q", "-p", "no:cacheprovider")
    done = python(*("-m", "pytest", *options), cwd=folder, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    part = "algorithm" if kind == "trainer" else kind
    loaded = load(GROUPS[part], f"my-{kind}")
    assert issubclass(loaded, PARTS[part].expected_type if part in PARTS else object)


@pytest.mark.plugins
def test_templates_are_clean_by_the_rules_of_this_repository(write, tmp_path):
    pytest.importorskip("ruff")
    for kind in KINDS:
        write(kind)
    # To an author our packages are third parties.
    rules = ("--config", ROOT / "pyproject.toml", "--config", "lint.isort.known-first-party = []")
    for command in (("check",), ("format", "--check")):
        done = python("-m", "ruff", *command, "--no-cache", *rules, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_templates_have_no_error_of_types(write, tmp_path):
    pytest.importorskip("pyright")
    for kind in KINDS:
        write(kind)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    done = python("-m", "pyright", "-p", tmp_path, "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout


def test_new_says_how_to_install_with_what_is_in_the_clone_alone(agl, tmp_path):
    said = agl("new", "trainer", "mine", "--folder", str(tmp_path / "mine")).err
    next_one = (
        f"Next: python install.py -e '{tmp_path}/mine[test]' (in a clone of agl); there: pytest"
    )
    assert said.startswith(next_one), said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("credit", "My_Rule"), "'My_Rule' is no name: write small letters, digits and -"),
        (("store", "memory"), "store 'memory' (plugin 'agl-core') has this name already"),
        (("credit", "mine", "--folder", "."), ". is not empty; name another one with --folder"),
    ],
)
def test_new_refuses_what_would_not_work(agl, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    refused = agl("new", *arguments)
    assert refused.code == 2
    assert message in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


CHANGES_SPANS = """
import agl

class Mine(agl.TraceAdapter):
    def adapt(self, source, /):
        source.sort(key=lambda span: -span.sequence_id)
        return [span.name for span in source]
"""
GIVES_NO_NUMBER = """
from agl_records import Credit, CreditRule

class Mine(CreditRule):
    def assign(self, calls, spans):
        return [Credit.model_construct(reward=float("nan")) for _ in calls]
"""
IGNORES_VAL = """
import agl

class Mine(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        pass
"""


@pytest.mark.parametrize(
    ("kind", "source", "sentence"),
    [
        (
            "adapter",
            CHANGES_SPANS,
            "adapter 'mine': 'spans are not changed' is broken: Neither the list nor a span in it. "
            "Got: ",
        ),
        (
            "credit",
            GIVES_NO_NUMBER,
            "'each call gets one finite credit' is broken: Those that cannot be trained as "
            "well. Got: agl.errors.AdapterError: credit rule 'credit' gave nan",
        ),
        (
            "algorithm",
            IGNORES_VAL,
            "'tasks to measure with are used or refused' is broken: ``check_datasets`` refuses "
            "those that ``run`` would leave unused. Got: AssertionError: no rollout is of val's",
        ),
    ],
    ids=["adapter", "credit", "algorithm"],
)
def test_check_says_what_is_broken(agl, install, kind, source, sentence):
    install("agl-mine", {"mine_mod.py": source}, {GROUPS[kind]: {"mine": "mine_mod:Mine"}})
    shown = agl("plugins", "check", "agl-mine")
    assert shown.code == 1
    assert sentence in shown.out


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("class Mine: ...", ": expected a CreditRule, got the class Mine"),
        (
            "import agl\nclass Mine(agl.CreditRule): ...",
            " does not load: class Mine lacks assign()",
        ),
        (
            f"{GIVES_NO_NUMBER}\n    def __init__(self):\n        raise OSError('no licence')",
            " cannot be built: OSError: no licence",
        ),
    ],
    ids=["wrong base class", "missing method", "constructor that raises"],
)
def test_check_says_once_why_a_component_cannot_be_made(agl, install, source, sentence):
    install("agl-mine", {"mine_mod.py": source}, {"agl.credits": {"mine": "mine_mod:Mine"}})
    shown = agl("plugins", "check", "agl-mine")
    assert shown.code == 1
    *_, row, _, last = shown.out.splitlines()
    assert "| 0 of 1 kept |" in row
    assert last == (
        f"credit 'mine': 'it loads' is broken: credit 'mine' (plugin 'agl-mine'){sentence}"
    )


def test_check_counts_what_it_skipped_and_says_where_an_author_gives_it(agl, write):
    write("dialect")
    shown = succeeds(agl, "plugins", "check", "my-dialect")
    assert "| 1 of 3 kept, 2 skipped |" in shown.out
    assert "'its calls are read' is skipped: there are no spans to read. Run pytest" in shown.out


def test_check_writes_a_table_for_a_readme(agl, write):
    write("credit")
    shown = succeeds(agl, "plugins", "check", "agl-my-credit")
    assert [line.split("|")[1:-1] for line in shown.out.strip().splitlines()] == [
        [" kind   ", " name      ", " version ", " claims      "],
        ["--------", "-----------", "---------", "-------------"],
        [" credit ", " my-credit ", " 0.1.0   ", " 4 of 4 kept "],
    ]
    [row] = json.loads(agl("plugins", "check", "credit/my-credit", "discount=0.5", "--json").out)
    assert row["distribution"] == "agl-my-credit"
    assert set(row["claims"].values()) == {"kept"}


def test_check_says_what_it_could_not_test(agl, install):
    code = """
        import click

        import agl

        class Needs(agl.TraceAdapter):
            def __init__(self, path: str) -> None:
                self.path = path

            def adapt(self, source, /):
                return sorted(span.span_id for span in source)

        @click.command()
        def command():
            pass
    """
    points = {
        "agl.adapters": {"needs": "mine_mod:Needs"},
        "agl.commands": {"mine": "mine_mod:command"},
    }
    points["agl.tracers"] = {"gone": "mine_mod:Gone"}
    install("agl-mine", {"mine_mod.py": code}, points)
    shown = agl("plugins", "check", "agl-mine")
    assert shown.code == 1
    assert "adapter 'needs': 'its options are given' is skipped: give path=..." in shown.out
    assert "| command | mine  | 1.0     | 1 of 1 kept " in shown.out
    assert (
        "tracer 'gone': 'it loads' is broken: tracer 'gone' (plugin 'agl-mine') does not load: "
        in (shown.out)
    )
    assert agl("plugins", "check", "needs").code == 1  # nothing was tried
    assert agl("plugins", "check", "needs", "path=x").code == 0
    misspelt = agl("plugins", "check", "needs", "path=x", "kep=2")
    assert misspelt == (2, "", "agl: adapter needs: kep: unknown key. Known: path\n")
    unknown = agl("plugins", "check", "agl-mini")
    assert unknown.code == 2
    assert "Did you mean 'agl-mine'?" in unknown.err


def test_check_tests_nothing_whose_extra_is_missing(agl, install):
    points = {"agl.adapters": {"mine": "mine_mod:Mine"}}
    needs = {"requires": ['nonesuch>=2; extra == "backend"'], "extras": ["backend"]}
    install("agl-mine", {"mine_mod.py": CHANGES_SPANS}, points, **needs)
    shown = agl("plugins", "check", "mine")
    assert shown.code == 1
    assert "skipped: needs nonesuch>=2; there is none. Run: " in shown.out


def test_check_runs_hook_plugins_as_they_are_in_every_run(agl, install):
    code = """
        import agl

        @agl.hookimpl
        def on_step_end(step, metrics):
            metrics.clear()
    """
    install("agl-mine", {"mine_mod.py": code}, {"agl.plugins": {"mine": "mine_mod"}})
    shown = agl("plugins", "check", "plugin/mine")
    assert "'it raises nothing and changes nothing' is broken: In a run" in shown.out
    assert "| 2 of 3 kept |" in shown.out
