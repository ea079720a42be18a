"""What is there where of ours only agl-core is installed, and what is said about the rest."""

import os
import re
import sysconfig
from pathlib import Path

import pytest
from tests.interpreter import python
from tests.run_agents import succeeds

import agl
from agl.errors import install_line


@pytest.fixture
def run(tmp_path):
    """Runs Python with this environment's packages, of ours only agl-core with its metadata."""
    folder, elsewhere = tmp_path / "packages", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("agl") or path.name.startswith("agl_core-"):
            (folder / path.name).symlink_to(path)
    (folder / "agl").symlink_to(Path(agl.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    # Without ``site``, whose .pth files would bring this environment's own sources.
    return lambda *words: python("-S", *words, cwd=elsewhere, env=environment)


def test_verb_that_is_not_installed_says_what_to_install(run):
    verbs = ["doctor", "explain", "export", "import", "ledger", "rollouts", "runs", "spans"]
    wanted = {"bench": "agl-core[bench]", **dict.fromkeys(verbs, "agl-inspect")}
    code = """
import sys, agl.cli
for verb in sys.argv[1:]:
    try:
        agl.cli.main([verb])
    except SystemExit as end:
        print(end.code)
"""
    done = run("-c", code, *wanted)
    assert done.stdout.split() == ["2"] * len(wanted)
    assert done.stderr.splitlines() == [
        f"agl: {verb!r} is not installed. Run: {install_line(name)}"
        for verb, name in wanted.items()
    ]


def test_help_describes_what_is_not_installed_and_names_what_brings_it(run):
    done = run("-c", "import agl.cli; agl.cli.main()", "--help")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["bench", "*       Measure the parts of agl on this machine"] in lines
    assert ["agl-core[bench]", "bench"] in lines
    assert ["agl-torch", "serve, merge"] in lines


SCRIPT = """
import agl

@agl.rollout(%s)
def agent(task: float) -> float:
    return task

@agl.algo
async def runs_all(store, train_dataset):
    for task in train_dataset:
        rollout = await store.enqueue_rollout(task)
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        print(task, ended.status)

result = agl.Trainer(algorithm=%s, strategy="shm").fit(agent, [1.0])
print(result.rollouts, result)
"""


def test_an_algorithm_runs(run):
    done = run("-c", SCRIPT % ("", "runs_all"))
    nothing = "agl-runs is not installed: nothing was written down of this run"
    shown = f"1.0 succeeded\nNone RunResult: rollouts not counted\n{nothing}\n"
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


def lacking(package: str, said: str = ".*") -> str:
    how = re.escape(install_line(package))
    return f"agl.errors.MissingPluginError: {said}, which is not installed. Run: {how}"


GRADED = "agent 'FunctionalLitAgent' has a grader; grader 'process' lives in agl-sandbox"
HOW = re.escape(install_line("agl-sandbox"))
STATEMENTS = {
    **{
        f"agl.Trainer(algorithm={name!r})": lacking(package, "algorithm: algorithm .*")
        for name, package in (
            *(("grpo", "agl-torch"), ("sft", "agl-unsloth"), ("verl", "agl-verl")),
            *(("apo", "agl-apo"), ("tinker", "agl-tinker")),
        )
    },
    **{
        f"agl.Trainer(strategy='shm', {option})": lacking("agl-runs")
        for option in ("run_dir='/x'", "run='x'", "resume=True", "force=True")
    },
    SCRIPT % ("", "None"): lacking("agl-runs", "algorithm: algorithm 'baseline' lives in agl-runs"),
    SCRIPT % ("grade=lambda task, private, result: 1.0", "runs_all"): (
        f"agl.errors.ConfigError: {GRADED}, which is not installed. Run: {HOW}"
    ),
    "agl.group_advantages": lacking("agl-learning", "agl.group_advantages lives in agl-learning"),
    "agl.save_ledger": lacking("agl-records", "agl.save_ledger lives in agl-records"),
    "from agl import APO": lacking("agl-apo", "agl.APO lives in agl-apo"),
    # Whoever asks whether it is there, asks for an error of imports.
    "try:\n    agl.VERL\nexcept ImportError as error:\n    raise error": lacking("agl-verl"),
    "agl.SqliteLightningStore": lacking("agl-sqlite"),
    "agl.Trainer(store='sqlite')": lacking("agl-sqlite"),
}
EACH = """
import sys, agl
for statement in sys.argv[1:]:
    try:
        exec(statement, {"agl": agl})
        print("nothing was raised")
    except Exception as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}")
"""


def test_what_is_not_installed_is_named_with_how_to_install_it(run):
    done = run("-c", EACH, *STATEMENTS)
    for line, (statement, said) in zip(done.stdout.splitlines(), STATEMENTS.items(), strict=True):
        assert re.fullmatch(said, line), statement


def test_fixtures_are_active_with_agl_testing_only(run, tmp_path):
    arguments = ("-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider")
    alone = run(*arguments)
    assert "tmp_path" in alone.stdout, alone.stderr
    assert "memory_store" not in alone.stdout
    packages, agl_testing = tmp_path / "packages", pytest.importorskip("agl_testing")
    (packages / "agl_testing").symlink_to(Path(agl_testing.__file__).parent)
    [metadata] = Path(sysconfig.get_path("purelib")).glob("agl_testing-*.dist-info")
    (packages / metadata.name).symlink_to(metadata)
    both = run(*arguments)
    assert "memory_store" in both.stdout, both.stderr


def test_a_process_of_runners_alone_needs_no_algorithm(monkeypatch, caplog):
    strategy = agl.ClientServerExecutionStrategy(role="runner", server_port=1)
    started: list[object] = []
    monkeypatch.setattr(strategy, "execute", lambda *what: started.append(what))
    trainer = agl.Trainer(strategy=strategy, store=agl.InMemoryLightningStore())
    monkeypatch.setattr("agl.trainer.plan_part", lambda kind, *given: pytest.fail(kind))
    for fit in (trainer.fit, trainer.dev):
        fit(succeeds, [1])
    assert len(started) == 2
    assert "nothing is learned" not in caplog.text
