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

from agl_http.addresses import own_address
from agl_testing.echo_llm import EchoLLM

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


WITH_GATEWAY = """
    import json
    from urllib.request import Request, urlopen

    @agl.rollout
    def agent(task: str, llm: agl.LLM) -> float:
        call = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
        headers = {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"}
        urlopen(Request(f"{llm.endpoint}/chat/completions", json.dumps(call).encode(), headers))
        print("ENDPOINT", llm.endpoint, flush=True)
        return 1.0

    class Calls(agl.Algorithm):
        needs_gateway = True

        async def run(self, train_dataset=None, val_dataset=None):
            gateway, store = self.get_llm_proxy(), self.get_store()
            print("GATEWAY", gateway.host, flush=True)
            await store.add_resources({"llm": gateway.as_resource()})
            rollout = await store.enqueue_rollout("hello")
            (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            print("RESULT", ended.status, flush=True)

    backend = {"model": "openai/echo", "api_base": os.environ["ECHO"]}
    models = [{"model_name": "echo", "litellm_params": backend}]
    agl.Trainer(
        algorithm=Calls(),
        strategy="cs",
        n_runners=2,
        llm_proxy={"model_list": models, "open": bool(os.environ.get("OPEN"))},
    ).fit(agent)
    """


def role(scene, role: str, llm: EchoLLM, **more: str) -> dict[str, str]:
    """The environment of a process with a role."""
    token = {"AGL_SERVER_TOKEN": "a long random text"}
    given = {"AGL_CURRENT_ROLE": role, "ECHO": llm.url}
    return {**scene.environment, **token, **given, **more}


def test_algorithm_and_runner_roles_meet_over_the_network_and_so_does_a_gateway(scene) -> None:
    script, port = scene.write(WITH_GATEWAY), {"AGL_SERVER_PORT": str(free_port())}
    host = {"AGL_SERVER_HOST": "0.0.0.0"}
    with EchoLLM() as llm:
        command, pipes = [sys.executable, script], {"stdout": subprocess.PIPE, "text": True}
        runner = subprocess.Popen(command, env=role(scene, "runner", llm, **port), **pipes)
        try:
            learner = python(script, env=role(scene, "algorithm", llm, **port, **host), timeout=250)
        finally:
            runner.terminate()
            output, _ = runner.communicate(timeout=250)
    assert learner.returncode == 0, learner.stderr
    assert learner.stdout.splitlines()[:2] == ["GATEWAY 0.0.0.0", "RESULT succeeded"]
    assert f"ENDPOINT http://{own_address()}:" in output
    assert wait_until(lambda: scene.left() == [])


@pytest.mark.parametrize(
    ("more", "said"),
    [({"OPEN": "yes"}, "leave open out"), ({"AGL_SERVER_TOKEN": ""}, "set AGL_SERVER_TOKEN")],
)
def test_what_other_machines_would_reach_without_a_token_is_refused(scene, more, said) -> None:
    with EchoLLM() as llm:
        more = {"AGL_SERVER_HOST": "0.0.0.0", "AGL_SERVER_PORT": str(free_port()), **more}
        given = {k: v for k, v in role(scene, "algorithm", llm, **more).items() if v}
        refused = python(scene.write(WITH_GATEWAY), env=given, timeout=250)
    assert refused.returncode == 1
    assert said in refused.stderr.splitlines()[-1]


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
