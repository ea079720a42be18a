"""Training on verl's engine without Ray: the quick test that the CPU parts fit verl."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

pytestmark = pytest.mark.timeout(600)  # half a minute where nothing else runs


@pytest.fixture(scope="module")
def found(tiny_model, tmp_path_factory):
    result = tmp_path_factory.mktemp("engine") / "result.json"
    script = Path(__file__).with_name("engine_run.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tiny_model, result],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads(result.read_text())


def test_engine_recomputes_the_servers_log_probabilities(found):
    for step in found["steps"]:
        assert step["logprob_difference"] < 1e-5, found["steps"]


def test_each_step_has_a_gradient_and_weights_move(found):
    for step in found["steps"]:
        assert step["grad_norm"] > 1e-4, found["steps"]
    # AdamW moves a weight by about the learning rate per step: three of 3e-3.
    assert 1e-3 < found["moved"] < 3e-2


def test_saved_weights_do_not_follow_the_live_ones(found):
    assert found["restore"]["changed"] == pytest.approx(1.0, abs=1e-5)
    assert found["restore"]["after_restoring"] == 0.0
