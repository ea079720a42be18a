"""The gradient of verl's real worker is that of the whole batch's loss, however it is cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

PROGRAM = Path(__file__).parent / "maths_engine.py"
TOLERANCE = 1e-5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def gradients(model: Path, file: Path, ranks: int) -> dict[str, dict[str, float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    programs = [
        subprocess.Popen(
            [sys.executable, PROGRAM, model, file, str(rank), str(ranks)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for program in programs:
            said, _ = program.communicate(timeout=380)
            assert program.returncode == 0, said[-4000:]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return json.loads(file.read_text())


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_gradient_is_that_of_the_whole_batch(tiny_model: Path, tmp_path: Path, ranks: int) -> None:
    results = gradients(tiny_model, tmp_path / "results.json", ranks)
    by_rows = results.pop("verl")
    # The control: verl's own mean over tokens has another gradient, so the comparison can fail.
    assert by_rows["difference"] > 100 * TOLERANCE
    assert len(results) == (27 if ranks == 1 else 18)
    for name, found in results.items():
        assert found["largest"] > 100 * TOLERANCE, name
        assert found["difference"] < TOLERANCE, (name, found)
