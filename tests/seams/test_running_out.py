"""A run that runs out of something ends soon, says how it goes on, and goes on with all it had."""

import json
import shutil
import subprocess
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import fork_server
from tests.stores import opened

from agl_records.ledger.ledger import load_parts
from agl_runs.store import query_runs

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("grpo_run.py")
CALLS_PER_STEP = 4
CALLS = 3 * CALLS_PER_STEP + 2
"""Of three steps and two evaluations."""


ENTER = """
import ctypes, os, runpy, sys

_, holder, *sys.argv[:] = sys.argv
places = [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in ("user", "mnt")]
assert not any(ctypes.CDLL(None).setns(place, 0) for place in places)
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class SmallDisk:
    """A file system in memory, which only processes see that run in it."""

    path: Path
    holder: int

    def python(self, script: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run a script where the disk is."""
        return fork_server.run(["-c", ENTER, self.holder, script, *arguments])

    def run(self, *command: object) -> "subprocess.CompletedProcess[str]":
        """Run a command where the disk is."""
        enter = ["nsenter", "--preserve-credentials", "--user", "--mount", "--target"]
        given = map(str, [*enter, self.holder, *command])
        return subprocess.run([*given], capture_output=True, text=True, timeout=250, check=False)

    def grow(self, size: str) -> None:
        """Give it another size."""
        done = self.run("mount", "-o", f"remount,size={size}", self.path)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[SmallDisk]:
    """One of so many kB as the test says."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("needs unshare and nsenter")
    path = tmp_path / "disk"
    path.mkdir()
    mount = f'mount -t tmpfs -o size={request.param}k tmpfs "$0" && echo mounted && read _'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    holder = subprocess.Popen(command, text=True, **pipes)
    try:
        if holder.stdout is None or holder.stdout.readline() != "mounted\n":
            pytest.skip("no file system can be mounted here")
        yield SmallDisk(path, holder.pid)
    finally:
        holder.communicate("\n")


def steps_of(metrics: Iterable[str]) -> list[int]:
    lines = map(json.loads, metrics)
    return [line["step"] for line in lines if "reward/mean" in line]


async def how_it_ended(folder: Path) -> list[tuple[str | None, str | None]]:
    async with opened(folder / "store.db") as store:
        runs = await query_runs(store)
        items = [one for part in await load_parts(store) for one in part.trained]
        trained = [one.key for one in items if one.kind == "call"]
        assert len(trained) == len(set(trained))
    return [(one.outcome, one.error) for run in runs for one in run.generations]


@pytest.mark.sqlite
@pytest.mark.slow
@pytest.mark.parametrize("small_disk", [60], indirect=True)  # a checkpoint has more
async def test_a_checkpoint_that_finds_no_space_ends_the_run_which_goes_on(tmp_path, small_disk):
    folder = small_disk.path / "run"
    options = {"steps": 3, "checkpoints": 2, "run_dir": str(folder)}
    full = small_disk.python(SCRIPT, tmp_path, json.dumps(options))
    assert full.returncode == 1
    words = "step-000002' could not be written, with 0."
    assert words in full.stderr, full.stderr[-3000:]
    assert "What it has is kept: go on with Trainer(run=" in full.stderr
    assert small_disk.run("ls", "-A", folder / "checkpoints").stdout == ""
    ((outcome, error),) = await how_it_ended(tmp_path)
    assert outcome == "failed"
    assert words in (error or "")

    small_disk.grow("20m")
    done = small_disk.python(SCRIPT, tmp_path, json.dumps({**options, "resume": True}))
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = small_disk.run("cat", folder / "metrics.jsonl").stdout.splitlines()
    assert steps_of(metrics) == [1, 2, 3]
    # Nothing that had ended ran again.
    assert len((tmp_path / "endpoints.txt").read_text().splitlines()) == CALLS
    assert [outcome for outcome, _ in await how_it_ended(tmp_path)] == ["failed", "finished"]


@pytest.mark.parametrize("small_disk", [400], indirect=True)  # the log of the store has more
@pytest.mark.nightly  # a full disk is waited for, for a minute
async def test_a_store_that_finds_no_space_ends_the_run_which_goes_on(tmp_path, small_disk) -> None:
    home = small_disk.path
    options = {"steps": 3, "checkpoints": 1, "run_dir": str(tmp_path / "run")}
    full = small_disk.python(SCRIPT, home, json.dumps(options))
    assert full.returncode == 1
    assert "StoreDiskError" in full.stderr, full.stderr[-3000:]
    assert "database or disk is full" in full.stderr
    assert "What it has is kept: go on with Trainer(run=" in full.stderr

    small_disk.grow("20m")
    done = small_disk.python(SCRIPT, home, json.dumps({**options, "resume": True}))
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps_of((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == [1, 2, 3]
    copied = small_disk.run("cp", home / "store.db", tmp_path)
    assert copied.returncode == 0
    assert [outcome for outcome, _ in await how_it_ended(tmp_path)][-1] == "finished"


async def test_a_budget_that_is_spent_amid_a_step_loses_nothing_of_it(tmp_path: Path) -> None:
    def fit(calls: int, **options: object) -> "subprocess.CompletedProcess[str]":
        given = json.dumps({"steps": 3, "run_budget": {"calls": calls}, **options})
        return fork_server.run([SCRIPT, tmp_path, given])

    spent = fit(calls=1 + CALLS_PER_STEP + 1)
    assert spent.returncode == 0, spent.stderr[-3000:]
    said = " ".join(spent.stderr.split())
    assert "the budget of the run is spent (calls 6 of 6): it ends with what it has" in said
    assert "go on with Trainer(run=" in said
    ((outcome, error),) = await how_it_ended(tmp_path)
    assert (outcome, error) == ("stopped", "the budget of the run is spent (calls 6 of 6)")
    metrics = tmp_path / "run/metrics.jsonl"
    assert steps_of(metrics.read_text().splitlines()) == [1]
    refused = CALLS_PER_STEP - 1
    assert len((tmp_path / "endpoints.txt").read_text().splitlines()) == 6 + refused

    done = fit(calls=1000, resume=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps_of(metrics.read_text().splitlines()) == [1, 2, 3]
    # Only what was refused ran once more.
    assert len((tmp_path / "endpoints.txt").read_text().splitlines()) == CALLS + refused
    assert [outcome for outcome, _ in await how_it_ended(tmp_path)] == ["stopped", "finished"]
