"""Tasks of Harbor in real containers."""

import asyncio
import os
from pathlib import Path

import pytest
from tests import containers

import agl
from agl.errors import ConfigError
from agl_runs.environments import load_environment
from agl_testing.echo_llm import EchoLLM

TASK = "[environment]\ncpus = 1\nmemory_mb = 256\n[agent]\ntimeout_sec = {seconds}\n"
VERIFIER = (
    "#!/bin/bash\n[ -e /answer ] && echo $(cat /answer) > /logs/verifier/reward.txt\nexit 0\n"
)


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("podman")
    containers.write_image(folder / "root.tar")
    with containers.podman(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks a server otherwise
        patch.syspath_prepend(str(Path(__file__).parent))
        yield folder / "root.tar"


@pytest.fixture
def tasks(tmp_path, image):
    """Makes a folder of tasks: what the model answers is the instruction, run in the sandbox."""

    def make(instruction, seconds=60, dockerfile="FROM scratch\nADD root.tar /\n"):
        folder = tmp_path / "tasks" / "one"
        (folder / "environment").mkdir(parents=True)
        (folder / "tests").mkdir()
        (folder / "task.toml").write_text(TASK.format(seconds=seconds))
        (folder / "instruction.md").write_text(instruction)
        (folder / "tests" / "test.sh").write_text(VERIFIER)
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
        os.link(image, folder / "environment" / "root.tar")
        return str(folder.parent)

    return make


def run(tasks, agent="shell_agent:ShellAgent", **options):
    """The one rollout of a run through the gateway, its failure, and its spans."""
    made = load_environment({"type": "harbor", "tasks": tasks, "agent": agent, **options})
    with EchoLLM() as llm:
        entry = {"model": "openai/echo", "api_base": llm.url, "api_key": "none"}
        proxy = agl.LLMProxy(model_list=[{"model_name": "echo", "litellm_params": entry}])
        trainer = agl.Trainer(
            algorithm="baseline",
            strategy="shm",
            llm_proxy=proxy,
            initial_resources={"llm": proxy.as_resource()},
        )
        trainer.fit(made.agent, made.train)

    async def read():
        [rollout] = (await trainer.store.query_rollouts()).items
        [attempt] = await trainer.store.query_attempts(rollout.rollout_id)
        spans = await trainer.store.query_spans(rollout.rollout_id)
        await trainer.store.close()
        return rollout, attempt.error, spans

    return asyncio.run(read())


def test_a_verifier_rewards_what_the_model_did_in_a_container(tasks, tmp_path):
    options = {"sandbox": "podman", "price_per_hour": 3600.0, "logs": str(tmp_path / "logs")}
    rollout, error, spans = run(tasks("echo 0.5 > /answer"), **options)
    assert (rollout.status, error) == ("succeeded", None)
    assert agl.find_final_reward(spans) == 0.5
    assert [span.name for span in spans].count("openai.chat.completion") == 1
    [paid] = [span for span in spans if "sandbox.cost" in span.attributes]
    seconds = paid.attributes["sandbox.seconds"]
    assert seconds > 0
    assert paid.attributes["sandbox.cost"] == pytest.approx(seconds)
    assert [*(tmp_path / "logs").glob(f"{rollout.rollout_id}-1/result.json")]
    assert not Path("/answer").exists()


@pytest.mark.parametrize(
    ("instruction", "about", "agent", "boundary", "says"),
    [
        (
            "true",
            {"dockerfile": "FROM nothing.invalid/at:all\n"},
            {},
            "resources",
            "nothing.invalid",
        ),
        ("true", {}, {"env": {"NEEDS": "tmux"}}, "resources", "tmux cannot be installed"),
        ("exit 3", {}, {}, "agent", "exit code 3"),
        ("sleep 60", {"seconds": 1}, {}, "timeout", "timed out"),
        ("true", {}, {}, "evaluator", "No reward file"),
    ],
    ids=["sandbox", "setup", "agent", "timeout", "verifier"],
)
def test_what_failed_a_trial_is_said(tasks, instruction, about, agent, boundary, says):
    agent = {"type": "shell_agent:ShellAgent", **agent}
    _, error, spans = run(tasks(instruction, **about), agent, sandbox="podman")
    assert (error.boundary, error.type[:7]) == (boundary, "harbor.")
    assert says in error.message
    assert agl.find_final_reward(spans) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"agent": "terminus2"}, "no agent 'terminus2'. Did you mean 'terminus-2'"),
        ({"agent": "harbor.agents.nop:NopAgent", "sandbox": "podman"}, "not support base_url"),
        ({"sandbox": "dockr"}, "no sandbox 'dockr'. Did you mean 'docker'"),
        ({"sandbox": {"type": "podman", "speed": 3}}, "speed"),
        ({"sandbox": "e2b"}, "E2B_API_KEY|harbor\\[e2b\\]"),
        ({"tasks": "no-such-set@1.0", "sandbox": "podman"}, "'no-such-set@1.0' is no folder"),
        ({"sandbox": "podman"}, "whose train is empty"),
        ({"sandbox": "podman", "price_per_hour": -3}, "price_per_hour"),
    ],
)
def test_what_harbor_does_not_have_is_refused_before_a_run(tmp_path, wrong, says):
    with pytest.raises(ConfigError, match=says):
        load_environment({"type": "harbor", "tasks": str(tmp_path), **wrong})
