"""The solution of each example's task scores 1, and no cheat more than 0."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, environment

WALL = bool(find_spec("agl_sandbox") and shutil.which("bwrap"))
NAMES = ["calc_x", "unsloth", "spider", "apo"]
WORK_ALONE = [
    *("reads_its_task", "reads_its_rollout", "rewrites_its_task"),
    *("patches_what_scores", "patches_in_place"),
]
ALWAYS_REFUSED = [
    *WORK_ALONE,
    *("leaves_files", "emits_its_reward", "lies", "claims_everything", "says_nothing"),
]


def run(example: str, folder: Path, *arguments: str) -> Any:
    """What the script prints, run as people run theirs, with the example's folder at hand."""
    shutil.copy(Path(__file__).with_name("example_cheats.py"), folder)
    path = os.pathsep.join([str(EXAMPLES / example), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "example_cheats.py", *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize("example", NAMES)
def test_solution_scores_one_and_every_cheat_zero(
    example: str, strategy: str, tmp_path: Path
) -> None:
    names = ["solution", *ALWAYS_REFUSED, "solution_again"]
    rewards = run(example, tmp_path, strategy, '"none"', *names)
    assert rewards == dict.fromkeys(names, 0.0) | {"solution": 1.0, "solution_again": 1.0}


@pytest.mark.parametrize("example", NAMES)
def test_cheats_work_where_the_agent_scores_itself(example: str, tmp_path: Path) -> None:
    rewards = run(example, tmp_path, "alone")
    assert rewards == {"solution": 1.0} | dict.fromkeys(WORK_ALONE, 1.0)


FILES = {"spider": "questions.jsonl", "apo": "room_tasks.jsonl"}
"""Example -> the file with its keys, beside the agent; those of the others are made in code."""


@pytest.mark.parametrize("example", NAMES)
def test_agent_in_the_runners_process_finds_the_key(example: str, tmp_path: Path) -> None:
    """Not wanted, and said in the guide: a grader alone is no wall."""
    names = ["searches_the_memory", *(["loads_the_tasks"] if example in FILES else [])]
    assert run(example, tmp_path, "cs", '"none"', *names) == dict.fromkeys(names, 1.0)


@pytest.mark.skipif(not WALL, reason="needs agl-sandbox and bubblewrap")
@pytest.mark.parametrize("example", NAMES)
def test_no_cheat_gets_through_the_wall(example: str, tmp_path: Path) -> None:
    wall: dict[str, Any] = {"type": "process"}
    cheats = [*ALWAYS_REFUSED, "searches_the_memory"]
    if example in FILES:
        wall["hide"] = [str(EXAMPLES / example / FILES[example])]
        cheats.append("loads_the_tasks")
    names = ["solution", *cheats, "solution_again"]
    rewards = run(example, tmp_path, "cs", json.dumps(wall), *names)
    assert rewards == dict.fromkeys(cheats, 0.0) | {"solution": 1.0, "solution_again": 1.0}
