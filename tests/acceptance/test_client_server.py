"""The client-server strategy, with real processes that are really killed."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from tests.seams.scene import HEAD, wait_until

SCRIPT_HEAD = f"""{HEAD}
def algorithm_of(tasks, config=None):
    @agl.algo
    async def algorithm(store):
        rollouts = [await store.enqueue_rollout(task, config=config) for task in tasks]
        await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
        for rollout in rollouts:
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            spans = await store.query_spans(rollout.rollout_id, "latest")
            error = ended.attempt.error
            print(
                "RESULT", ended.input, ended.status, ended.attempt.sequence_id,
                agl.find_final_reward(spans), error.boundary if error else None, flush=True,
            )
    return algorithm
"""


def write(folder: Path, body: str) -> Path:
    script = folder / "script.py"
    script.write_text(SCRIPT_HEAD + textwrap.dedent(body))
    return script


def run(folder: Path, body: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, write(folder, body)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == code, done.stderr
    return done


def results(output: str) -> list[list[str]]:
    return [line.split()[1:] for line in output.splitlines() if line.startswith("RESULT")]


def processes_of(script: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(script) in (process.info["cmdline"] or []) and process.info["status"] != "zombie":
            found.append(process)
    return found


def test_two_runner_processes_do_all_tasks(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        @agl.rollout
        def agent(task: int) -> float:
            time.sleep(0.2)
            agl.emit_message(f"pid {os.getpid()}")
            return task / 10

        trainer(algorithm_of(range(6)), n_runners=2).fit(agent)
        """,
    )
    assert results(done.stdout) == [
        [str(task), "succeeded", "1", str(task / 10), "None"] for task in range(6)
    ]


def test_crashed_algorithm_ends_the_runners_and_the_exit_code_says_so(tmp_path: Path) -> None:
    body = """
        @agl.algo
        async def algorithm(store):
            await store.enqueue_rollout(1)
            raise ZeroDivisionError("the algorithm is broken")

        trainer(algorithm, n_runners=2).fit(agent)
        """
    done = run(tmp_path, body, code=1)
    assert "AlgorithmError: the algorithm failed: ZeroDivisionError" in done.stderr
    assert processes_of(tmp_path / "script.py") == []


LONG_RUN = """
    @agl.rollout
    def agent(task: int) -> float:
        (HERE / f"started-{task}").touch()
        time.sleep(0.2)
        return 1.0

    trainer(algorithm_of(range(1000)), n_runners=2).fit(agent)
    """


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_interrupt_ends_everything(tmp_path: Path, number: int, code: int) -> None:
    script = write(tmp_path, LONG_RUN)
    process = subprocess.Popen(
        [sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert wait_until(lambda: (tmp_path / "started-2").exists())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # what a terminal does
    else:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=250)
    assert process.returncode in (code, -number, 130), stderr
    assert wait_until(lambda: processes_of(script) == [])


def test_killed_parent_takes_its_runners_along(tmp_path: Path) -> None:
    script = write(tmp_path, LONG_RUN)
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    assert wait_until(lambda: (tmp_path / "started-2").exists())
    assert len(processes_of(script)) >= 4  # parent, supervisor, two runners
    process.kill()
    process.wait()
    assert wait_until(lambda: processes_of(script) == [])


ROLE_SCRIPT = """
    @agl.rollout
    def agent(task: int) -> float:
        return task / 2

    agl.Trainer(algorithm=algorithm_of(range(4)), strategy="cs", n_runners=2).fit(agent)
    """


def test_algorithm_and_runner_roles_meet_over_the_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = write(tmp_path, ROLE_SCRIPT)
    environment = {**os.environ, "AGL_SERVER_PORT": port}
    learns = {**environment, "AGL_CURRENT_ROLE": "algorithm", "AGL_SERVER_HOST": "0.0.0.0"}
    command = [sys.executable, script]
    refused = subprocess.run(command, env=learns, capture_output=True, text=True, timeout=250)
    assert refused.returncode == 1
    assert "AGL_SERVER_TOKEN" in refused.stderr.splitlines()[-1]
    token = {"AGL_SERVER_TOKEN": "a long random text"}
    runner = subprocess.Popen(
        command,
        env={**environment, **token, "AGL_CURRENT_ROLE": "runner", "AGL_SERVER_HOST": "127.0.0.1"},
        stderr=subprocess.DEVNULL,
    )
    try:
        learner = subprocess.run(
            command, env={**learns, **token}, capture_output=True, text=True, timeout=250
        )
        assert learner.returncode == 0, learner.stderr
        assert [row[1] for row in results(learner.stdout)] == ["succeeded"] * 4
    finally:
        runner.terminate()
        runner.wait(timeout=250)
    assert wait_until(lambda: processes_of(script) == [])


def test_runner_may_stay_in_the_main_process(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        MAIN = os.getpid()

        @agl.rollout
        def agent(task: int) -> float:
            return float(os.getpid() == MAIN)

        trainer(algorithm_of([1, 2]), main_process="runner").fit(agent)
        """,
    )
    assert [row[3] for row in results(done.stdout)] == ["1.0", "1.0"]
