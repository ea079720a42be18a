"""Start a training run as a user would, and look at what it left: files, and processes.

Every run has a mark in its environment, which all processes inherit that it starts, Ray's too; who
carries the mark after the run has outlived it.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "AGL_TEST_RUN"
GRACE_SECONDS = 30.0
"""Ray's processes end one after the other once their parent has gone."""
HERE = Path(__file__).parent


@dataclass
class Ended:
    """What came of a run."""

    code: int
    metrics: list[dict[str, Any]]
    """A line per step, in order; validation has lines of its own."""
    summary: dict[str, Any]
    left: list[str]
    """Command lines of processes that outlived the run; they are ended by then."""
    log: str

    def values(self, name: str) -> list[float]:
        """Of the metric, in the steps that have it."""
        return [line[name] for line in self.metrics if name in line]


def marked(mark: str) -> dict[int, str]:
    """Process id to command line of all processes that carry the mark."""
    found = {}
    needle = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if command:  # none: it has ended, and waits for its parent
                    found[int(folder.name)] = command
    return found


def run(out: Path, *, timeout: float = 1500.0, **options: Any):
    """Run ``train.py`` to its end; what an earlier run in its folder wrote is not returned.

    ``options`` are those of ``train.Options``.
    """
    options["out"] = str(out)
    out.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    file = out / "metrics.jsonl"
    before = _lines(file)
    log = out / f"log-{mark[:6]}.txt"
    command = [sys.executable, "-W", "ignore", HERE / "train.py"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARK: mark},
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    left = end_all(mark)
    text = log.read_text(errors="replace")
    summary = out / "summary.json"
    found = json.loads(summary.read_text()) if summary.exists() else {}
    # A run that goes on writes the file anew, with what it keeps of the lines before.
    metrics = [line for line in _lines(file) if line not in before]
    return Ended(code, metrics, summary=found, left=left, log=text)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def end_all(mark: str) -> list[str]:
    """Wait for processes with the mark to end; kill and return those that do not."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    for process_id in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    return sorted(left.values())


def check(ended: Ended, steps: list[int], *, learning: int | None = None) -> None:
    """What holds of every run; ``learning`` steps from the first have a gradient, or all.

    When every rollout has the best reward, there is none.
    """
    assert ended.code == 0, ended.log[-4000:]
    assert ended.left == [], "processes outlived the run"
    assert ended.values("training/global_step") == steps
    norms = ended.values("grad_norm")
    assert len(norms) == len(steps)
    assert all(math.isfinite(norm) for norm in norms)
    assert all(norm > 0 for norm in norms[:learning]), norms
    summary = ended.summary
    excluded = sum(summary["calls_excluded"].values())
    assert summary["calls"] == summary["calls_trained"] + excluded
    assert summary["calls_trained"] > 0


def check_weights(ended: Ended) -> None:
    """The server samples with the weights that the trainer has, in every step."""
    differences = ended.values("training/rollout_probs_diff_max")
    assert len(differences) == len(ended.values("training/global_step"))
    assert all(difference < 1e-5 for difference in differences), differences
