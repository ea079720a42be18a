"""Nothing that an agent leaves behind reaches its grader, and no reward of its own counts.

Each cheat works where the same scorer runs in the agent's process, so that none fails as it is
broken.
"""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter import python

from . import graded_cheats

WALL = bool(find_spec("agl_sandbox") and shutil.which("bwrap"))
FOLDER = Path(__file__).parent


def run(folder: Path, *arguments: str) -> Any:
    """What the script prints last, run in a folder of its own, as people run theirs."""
    shutil.copy(FOLDER / "graded_cheats.py", folder)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("AGL_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = python("graded_cheats.py", *arguments, cwd=folder, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


ALWAYS_REFUSED = [cheat.__name__ for cheat in graded_cheats.ALWAYS_REFUSED]
NEED_A_WALL = [cheat.__name__ for cheat in graded_cheats.NEED_A_WALL]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_every_cheat_gets_nothing_and_the_solution_all(strategy: str, tmp_path: Path) -> None:
    rewards = run(tmp_path, strategy, "none", "solves", *ALWAYS_REFUSED)
    assert rewards == {"solves": 1.0} | dict.fromkeys(ALWAYS_REFUSED, 0.0)
    # What they left is there, beside the runner: honest work is graded none the worse.
    assert (tmp_path / "reward.txt").exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_grade_that_comes_after_the_end_counts_for_nothing(strategy: str, tmp_path: Path) -> None:
    """It would, were it not known when it came."""
    rewards = run(tmp_path, strategy, "none", "writes_a_grade_later")
    assert rewards == {"writes_a_grade_later": 0.0, "writes_a_grade_later, unknown": 1.0}


@pytest.mark.parametrize("cheat", sorted({*ALWAYS_REFUSED} - {"lies", "replaces_the_grader"}))
def test_cheat_works_on_a_scorer_in_its_own_process(cheat: str, tmp_path: Path) -> None:
    """But for two that have no point where there is no grader to lie to, or to replace."""
    assert run(tmp_path, "alone", cheat) == 1.0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cheat", NEED_A_WALL)
def test_agent_in_the_runners_process_reaches_what_only_a_wall_hides(cheat, tmp_path) -> None:
    """Not wanted, and said in the guide: ``isolation: none`` is for agents that are trusted."""
    assert run(tmp_path, "cs", "none", cheat) == {cheat: 1.0}


@pytest.mark.timeout(120)
@pytest.mark.skipif(not WALL, reason="needs agl-sandbox and bubblewrap")
def test_no_cheat_gets_through_the_wall(tmp_path: Path) -> None:
    cheats = [*ALWAYS_REFUSED, *NEED_A_WALL]
    rewards = run(tmp_path, "cs", "process", *cheats, "solves")
    assert rewards == {"solves": 1.0} | dict.fromkeys(cheats, 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["graded_cheats.py"], "nothing is left"
