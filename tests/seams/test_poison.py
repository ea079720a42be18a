"""One bad record or agent costs one rollout: forty at once, one of them poisonous."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server

from . import poison
from .poison import NUM, ONLY_PROCESSES, POISONS


def check(name: str, found: list[dict[str, Any]]) -> None:
    """The healthy ones are as if nothing had been, and the bad one has its reason."""
    expected = POISONS[name]
    bad, *healthy = found
    assert len(healthy) == NUM - 1
    for one in healthy:
        assert (one["status"], one["reward"]) == ("succeeded", 1.0), one
        assert expected.takes_others or one["first_boundary"] is None
        assert one["num_spans"] == (1 if expected.plain else 2)
    if expected.boundary is None:
        assert (bad["status"], bad["reason"]) == ("succeeded", None)
        assert bad["reward"] == expected.reward
    else:
        assert bad["status"] == "failed"
        assert bad["boundary"] == expected.boundary
        assert expected.says in bad["reason"]
        assert len(bad["reason"]) < 70_000
        assert bad["num_spans"] >= (0 if expected.plain else 1)  # what it wrote before is there


IN_THREADS = [name for name in POISONS if name not in ONLY_PROCESSES]
IN_A_FILE = [name for name in IN_THREADS if name.startswith(("surrogate", "span", "infinite"))]


def run_apart(name: str, strategy: str, store: str, folder: Path) -> list[dict[str, Any]]:
    """In a process of its own: what a poison leaves behind is not the next test's."""
    done = fork_server.run([poison.__file__, name, strategy, store, folder])
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr
    assert done.returncode == 0, done.stderr
    return json.loads(lines[0].removeprefix("FOUND "))


@pytest.mark.parametrize(
    ("name", "store"),
    [(name, "memory") for name in IN_THREADS] + [(name, "sqlite") for name in IN_A_FILE],
)
def test_poison_in_threads_costs_one_rollout(name: str, store: str, tmp_path: Path) -> None:
    run = run_apart if name.startswith("loop") else poison.run
    check(name, run(name, "shm", store, tmp_path))


OF_A_PROCESS = (*ONLY_PROCESSES, "loop", "KeyboardInterrupt", "SystemExit")
"""What acts on the process itself; the records of the others end in a store as they do in threads,
where each of them is tried for every push."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(OF_A_PROCESS) else pytest.mark.nightly)
        for name in POISONS
    ],
)
def test_poison_in_processes_costs_one_rollout(name: str, tmp_path: Path) -> None:
    check(name, run_apart(name, "cs", "sqlite", tmp_path))
