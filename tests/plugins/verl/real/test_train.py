"""The quickstart's agent learns with the real verl, and what happens when agents fail.

Modes, estimators and resuming are in ``test_modes``. Not one assertion is about speed. That weights
arrive is verl's own measurement: the largest difference between a token's probability at the
inference server and at the trainer.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

pytestmark = pytest.mark.timeout(3600)

SCRIPT = Path(__file__).parent / "quickstart.py"
DIFF = "training/rollout_probs_diff_max"
MAX_DIFF = 1e-5
"""Of probabilities at equal weights: rounding. One step's change of the weights is above 1e-3."""
MARK = "AGL_TEST_RUN"


@dataclass
class Run:
    """What a run left behind."""

    code: int
    log: str
    out: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.out / "summary.json").read_text())

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The metrics of training steps."""
        return [line for line in self.lines if "training/global_step" in line]


def train(out: Path, *arguments: str, timeout: float = 900, **environment: str) -> Run:
    """Run the quickstart, and see that it leaves no process."""
    mark = uuid.uuid4().hex
    out.mkdir(parents=True, exist_ok=True)
    log = out / "log.txt"
    with log.open("a") as file:
        run = subprocess.run(
            [sys.executable, str(SCRIPT), "--out", str(out), *arguments],
            env={**os.environ, **environment, MARK: mark, "RAY_TMPDIR": "/tmp"},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            cwd=out,
        )
    left = left_after(mark, 30)
    assert not left, f"processes outlived the run: {left}"
    return Run(run.returncode, log.read_text(), out)


def left_after(mark: str, seconds: float) -> dict[int, str]:
    """Processes with this mark that do not end by themselves."""
    deadline = time.monotonic() + seconds
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def processes(mark: str) -> dict[int, str]:
    """Processes that were started with this mark in their environment."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:80]
        except OSError:
            continue
    return found


def succeeded(run: Run, steps: int) -> None:
    """It did what it was told, and nothing is unaccounted for."""
    assert run.code == 0, run.log[-3000:]
    assert [line["training/global_step"] for line in run.steps] == list(range(1, steps + 1))
    summary = run.summary
    assert summary["steps"] == steps
    assert is_balanced(summary)


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


@pytest.mark.long
def test_grpo_learns_and_weights_arrive_after_every_step(tmp_path):
    run = train(tmp_path, "--steps", "14", "--epochs", "4", "--rollouts", "8")
    succeeded(run, 14)
    assert [line["training/rollout_probs_diff_valid"] for line in run.steps] == [1.0] * 14
    assert max(line[DIFF] for line in run.steps) < MAX_DIFF
    rewards = run.summary["rewards"]
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.1, rewards
    assert all(line["rollouts/succeeded"] == 64 for line in run.steps)
    assert all(line["training/off_policy/trajectory_staleness/max"] == 0 for line in run.steps)


@pytest.mark.long
def test_grpo_reaches_nine_of_ten_with_validation_and_checkpoints(tmp_path):
    run = train(
        *(tmp_path, "--steps", "60", "--epochs", "4", "--rollouts", "10", "--validate"),
        *("--set", "trainer.val_before_train=true", "--set", "trainer.test_freq=20"),
        *("--set", "trainer.save_freq=20"),
        timeout=3600,
    )
    succeeded(run, 60)
    assert max(line[DIFF] for line in run.steps) < MAX_DIFF
    assert mean(run.summary["rewards"][-5:]) > 0.9
    held_out = dict(run.summary["val_rewards"])
    assert list(held_out) == [0, 20, 40, 60]
    assert held_out[60] > held_out[0] + 0.5
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "60"


@pytest.mark.long
def test_failed_rollouts_and_a_dead_runner_are_no_zeros_and_no_end(tmp_path):
    run = train(
        *(tmp_path, "--steps", "3"),
        AGL_TEST_FAIL="0.3",
        AGL_TEST_DIE_ONCE=str(tmp_path / "died"),
    )
    succeeded(run, 3)
    assert (tmp_path / "died").exists()
    assert sum(line["rollouts/failed"] for line in run.steps) > 0
    for line in run.steps:
        rewards = line["reward/mean"]
        assert 0 <= rewards <= 1
        # Failed ones made no call here, so they have no rows; a zero would be one.
        assert line["rollouts/succeeded"] + line["rollouts/failed"] == 64


@pytest.mark.long
def test_a_run_in_which_every_rollout_fails_ends_and_says_why(tmp_path):
    run = train(tmp_path, "--steps", "3", "--prompts", "4", AGL_TEST_FAIL="1")
    assert run.code != 0
    assert "groups in a row gave nothing to train on" in run.log
    assert "agent: RuntimeError" in run.log
    assert run.summary["rollouts"] == run.summary["rollouts_failed"] > 0


@contextlib.contextmanager
def started(out: Path, steps: int) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A run that has done its first step, and the mark of its processes; killed in the end."""
    mark = uuid.uuid4().hex
    log = out / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--out", str(out), "--steps", str(steps)],
            env={**os.environ, MARK: mark},
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=out,
        )
        try:
            deadline = time.monotonic() + 900
            while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
                assert process.poll() is None, log.read_text()[-3000:]
                time.sleep(0.5)
            yield process, mark
        finally:
            process.kill()
            process.wait()


def is_balanced(summary: dict[str, Any]) -> bool:
    excluded = sum(summary["calls_excluded"].values())
    return summary["calls"] == summary["calls_trained"] + excluded > 0


@pytest.mark.long
def test_an_interrupted_run_leaves_no_process_and_accounts_for_what_it_did(tmp_path):
    with started(tmp_path, steps=500) as (process, mark):
        process.send_signal(signal.SIGINT)
        assert process.wait(180) != 0
    assert not left_after(mark, 60)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["steps"] >= 1
    assert is_balanced(summary)


@pytest.mark.long
def test_a_dead_rollout_server_ends_the_run_and_does_not_hang_it(tmp_path):
    with started(tmp_path, steps=500) as (process, mark):
        (server,) = [
            process_id for process_id, line in processes(mark).items() if "InferenceServer" in line
        ]
        os.kill(server, signal.SIGKILL)
        assert process.wait(600) != 0
    assert not left_after(mark, 60)
    log = (tmp_path / "log.txt").read_text()
    assert "verl failed: ActorDiedError" in log or "groups in a row gave nothing" in log
    assert is_balanced(json.loads((tmp_path / "summary.json").read_text()))
