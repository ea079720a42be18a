"""The whole line on a CPU: agent, runner, store, gateway, verl's trainer in Ray, weights.

One run of three steps with a runner beside it, and one whose runner is in another environment.
"""

import os
import signal
import subprocess
import time
import uuid

import pytest

pytest.importorskip("verl")

import running
from running import check, check_weights, run

pytestmark = pytest.mark.timeout(1800)


def test_a_process_that_outlives_its_run_is_seen_and_ended(monkeypatch):
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
    mark = uuid.uuid4().hex
    orphan = subprocess.Popen(
        ["sleep", "600"], env=os.environ | {running.MARK: mark}, start_new_session=True
    )
    while not running.marked(mark):  # /proc shows its environment a little later
        time.sleep(0.01)
    assert running.end_all(mark) == ["sleep 600"]
    assert orphan.wait(10) == -signal.SIGKILL
    assert running.end_all(mark) == []


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return run(tmp_path_factory.mktemp("short"), steps=3)


@pytest.mark.long
def test_three_steps_train_and_leave_no_process(short):
    check(short, [1, 2, 3])
    # 3 steps of 4 tasks of 4 rollouts of 2 calls.
    assert short.summary["rollouts"] == 3 * 4 * 4
    assert short.summary["calls"] == 3 * 4 * 4 * 2
    assert short.summary["rollouts_failed"] == 0


@pytest.mark.long
def test_the_server_has_the_trainers_weights_in_every_step(short):
    check_weights(short)


@pytest.mark.long
def test_nothing_is_stale_in_the_mode_sync(short):
    assert short.values("training/off_policy/trajectory_staleness/max") == [0, 0, 0]


@pytest.mark.long
def test_a_runner_machine_needs_nothing_that_trains(tmp_path):
    python = os.environ.get("AGL_RUNNER_PYTHON")
    if not python:
        pytest.skip("AGL_RUNNER_PYTHON names no interpreter of an environment for a runner")
    names = "('torch', 'verl', 'ray', 'agl_verl', 'agl_adapters', 'agl_learning')"
    code = f"from importlib.util import find_spec; print([n for n in {names} if find_spec(n)])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", "that environment has more than a runner needs"
    ended = run(tmp_path, runner_python=python, steps=2)
    check(ended, [1, 2])
    check_weights(ended)
    assert ended.summary["rollouts_failed"] == 0
