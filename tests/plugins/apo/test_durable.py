"""A run that is killed comes to the same end, and pays for no evaluation twice."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "resume.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_run_has_the_same_answer_and_pays_for_nothing_twice() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "2", "--algorithm", "apo"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong nothing" in done.stdout
