"""What is there where of ours only agl-core is installed, and what is said about the rest."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import agl
from agl.errors import install_line


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """This environment's packages, of ours only agl-core with its metadata."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("agl") or path.name.startswith("agl_core-"):
            (folder / path.name).symlink_to(path)
    (folder / "agl").symlink_to(Path(agl.__file__).parent)
    return folder


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without ``site``, whose .pth files would bring this environment's own sources.
    elsewhere = packages.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(packages)},
    )


def test_bench_says_what_to_install(packages: Path) -> None:
    done = run(packages, "-c", "import agl.cli; agl.cli.main()", "bench", "store")
    assert (done.returncode, done.stdout) == (2, "")
    how = install_line("agl-core[bench]")
    assert done.stderr == f"agl: 'bench' is not installed. Run: {how}\n"


@pytest.mark.parametrize(
    "verb", ["doctor", "explain", "export", "import", "ledger", "rollouts", "runs", "spans"]
)
def test_what_shows_a_store_says_what_to_install(packages: Path, verb: str) -> None:
    done = run(packages, "-c", "import agl.cli; agl.cli.main()", verb)
    assert (done.returncode, done.stdout) == (2, "")
    how = install_line("agl-inspect")
    assert done.stderr == f"agl: {verb!r} is not installed. Run: {how}\n"


def test_help_describes_what_is_not_installed_and_names_what_brings_it(packages: Path) -> None:
    done = run(packages, "-c", "import agl.cli; agl.cli.main()", "--help")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["bench", "*       Measure the parts of agl on this machine"] in lines
    assert ["agl-core[bench]", "bench"] in lines
    assert ["agl-torch", "serve, merge"] in lines


@pytest.mark.parametrize("name", ["grpo", "verl", "apo", "sft", "tinker"])
def test_algorithm_of_ours_says_what_to_install(packages: Path, name: str) -> None:
    done = run(packages, "-c", f"import agl; agl.Trainer(algorithm={name!r})")
    assert "agl.errors.MissingPluginError: algorithm: algorithm" in done.stderr.splitlines()[-1]
    assert "which is not installed. Run: " in done.stderr.splitlines()[-1]


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

agl.Trainer(algorithm=%s, strategy="shm").fit(agent, [1.0])
"""


def test_an_algorithm_runs(packages: Path) -> None:
    done = run(
        packages,
        "-c",
        f"{SCRIPT % ('', 'runs_all')}".replace("agl.Tr", "result = agl.Tr")
        + "print(result.rollouts, result)",
    )
    nothing = "agl-runs is not installed: nothing was written down of this run"
    shown = f"1.0 succeeded\nNone RunResult: rollouts not counted\n{nothing}\n"
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


@pytest.mark.parametrize("option", ["run_dir='/x'", "run='x'", "resume=True", "force=True"])
def test_options_of_a_record_say_what_to_install(packages: Path, option: str) -> None:
    done = run(packages, "-c", f"import agl; agl.Trainer(strategy='shm', {option})")
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"which is not installed. Run: {install_line('agl-runs')}")


def test_trainer_without_an_algorithm_says_what_to_install(packages: Path) -> None:
    done = run(packages, "-c", SCRIPT % ("", "None"))
    assert done.stderr.splitlines()[-1] == (
        "agl.errors.MissingPluginError: algorithm: algorithm 'baseline' lives in agl-runs, which "
        f"is not installed. Run: {install_line('agl-runs')}"
    )


def test_agent_with_a_grader_says_what_to_install(packages: Path) -> None:
    done = run(packages, "-c", SCRIPT % ("grade=lambda task, private, result: 1.0", "runs_all"))
    assert done.stderr.splitlines()[-1] == (
        "agl.errors.ConfigError: agent 'FunctionalLitAgent' has a grader; grader 'process' lives "
        f"in agl-sandbox, which is not installed. Run: {install_line('agl-sandbox')}"
    )


@pytest.mark.parametrize(
    ("name", "library"), [("group_advantages", "agl-learning"), ("save_ledger", "agl-records")]
)
def test_name_of_a_library_says_what_to_install(packages: Path, name: str, library: str) -> None:
    done = run(packages, "-c", f"import agl; agl.{name}")
    assert done.stderr.splitlines()[-1] == (
        f"agl.errors.MissingPluginError: agl.{name} lives in {library}, which is not "
        f"installed. Run: {install_line(library)}"
    )


@pytest.mark.parametrize("statement", ["agl.SqliteLightningStore", "agl.Trainer(store='sqlite')"])
def test_the_store_in_a_file_says_what_to_install(packages: Path, statement: str) -> None:
    done = run(packages, "-c", f"import agl; {statement}")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("agl.errors.MissingPluginError: ")
    assert last.endswith(f"which is not installed. Run: {install_line('agl-sqlite')}")


def test_fixtures_are_active_with_agl_testing_only(packages: Path) -> None:
    arguments = ("-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider")
    alone = run(packages, *arguments)
    assert "tmp_path" in alone.stdout, alone.stderr
    assert "memory_store" not in alone.stdout
    agl_testing = pytest.importorskip("agl_testing")
    (packages / "agl_testing").symlink_to(Path(agl_testing.__file__).parent)
    [metadata] = Path(sysconfig.get_path("purelib")).glob("agl_testing-*.dist-info")
    (packages / metadata.name).symlink_to(metadata)
    both = run(packages, *arguments)
    assert "memory_store" in both.stdout, both.stderr


def test_a_process_of_runners_alone_needs_no_algorithm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = agl.ClientServerExecutionStrategy(role="runner", server_port=1)
    started: list[object] = []
    monkeypatch.setattr(strategy, "execute", lambda *what: started.append(what))
    trainer = agl.Trainer(strategy=strategy, store=agl.InMemoryLightningStore())
    monkeypatch.setattr("agl.trainer.plan_part", lambda kind, *given: pytest.fail(kind))
    for fit in (trainer.fit, trainer.dev):
        fit(agl.rollout(lambda task: 1.0), [1])
    assert len(started) == 2
    assert "nothing is learned" not in caplog.text
