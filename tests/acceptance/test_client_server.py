"""The client-server strategy, with real processes that are really killed.

That a run does all its tasks, and ends with an algorithm that raises: the contract of strategies.
"""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from tests.interpreter import python
from tests.seams.conftest import scene as scene  # a fixture
from tests.seams.scene import wait_until
from tests.waiting import free_port

LONG_RUN = """
    @agl.rollout
    def agent(task: int) -> float:
        (HERE / f"started-{task}").touch()
        time.sleep(0.2)
        return 1.0

    trainer(algorithm_of(range(1000)), n_runners=2).fit(agent)
    """


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_interrupt_ends_everything(scene, number, code) -> None:
    process = scene.start(LONG_RUN)
    assert wait_until(lambda: (scene.folder / "started-2").exists())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # what a terminal does
    else:
        process.send_signal(number)
    assert process.wait(timeout=250) in (code, -number, 130), scene.errors.read_text()
    assert wait_until(lambda: scene.left() == [])


def test_killed_parent_takes_its_runners_along(scene) -> None:
    process = scene.start(LONG_RUN)
    assert wait_until(lambda: (scene.folder / "started-2").exists())
    assert len(psutil.Process(process.pid).children(recursive=True)) >= 3  # supervisor, two runners
    process.kill()
    process.wait()
    assert wait_until(lambda: scene.left() == [])


ROLES = """
    @agl.rollout
    def agent(task: int) -> float:
        return task / 2

    agl.Trainer(algorithm=algorithm_of(range(4)), strategy="cs", n_runners=2).fit(agent)
    """


def test_algorithm_and_runner_roles_meet_over_the_network(scene) -> None:
    script = scene.write(ROLES)
    environment = {**scene.environment, "AGL_SERVER_PORT": str(free_port())}
    learns = {**environment, "AGL_CURRENT_ROLE": "algorithm", "AGL_SERVER_HOST": "0.0.0.0"}
    refused = python(script, env=learns, timeout=250)
    assert refused.returncode == 1
    assert "AGL_SERVER_TOKEN" in refused.stderr.splitlines()[-1]
    token = {"AGL_SERVER_TOKEN": "a long random text"}
    there = {"AGL_CURRENT_ROLE": "runner", "AGL_SERVER_HOST": "127.0.0.1"}
    command, quiet = [sys.executable, script], {"stderr": subprocess.DEVNULL}
    runner = subprocess.Popen(command, env={**environment, **token, **there}, **quiet)
    try:
        learner = python(script, env={**learns, **token}, timeout=250)
        assert learner.returncode == 0, learner.stderr
        assert learner.stdout.count("succeeded None") == 4
    finally:
        runner.terminate()
        runner.wait(timeout=250)
    assert wait_until(lambda: scene.left() == [])


def test_runner_may_stay_in_the_main_process(scene) -> None:
    _, results, errors = scene.run(
        """
        MAIN = os.getpid()

        @agl.rollout
        def agent(task: int) -> float:
            assert os.getpid() == MAIN
            return 1.0

        trainer(algorithm_of([1, 2]), main_process="runner").fit(agent)
        """
    )
    assert results == [["1", "succeeded", "None"], ["2", "succeeded", "None"]], errors
