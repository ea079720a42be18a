"""``isolation: docker`` with real containers."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests import containers

import agl
from agl_testing.echo_llm import EchoLLM

from . import boxed

HERE = Path(__file__).parent
IMAGE = "localhost/agl-agent:1"


@pytest.fixture(scope="module", autouse=True)
def python(tmp_path_factory):
    """Python in the image."""
    folder = tmp_path_factory.mktemp("podman")
    package = folder / "tests" / "plugins" / "sandbox" / "real"
    package.mkdir(parents=True)
    (package / "boxed.py").write_text((HERE / "boxed.py").read_text())
    packages = os.environ["AGL_IMAGE_PACKAGES"]
    python = containers.write_image_of_python(folder / "root.tar", packages, folder / "tests")
    with containers.podman():
        subprocess.run(["podman", "import", "-q", folder / "root.tar", IMAGE], check=True)
        yield python


def run(python, tasks, **options):
    """Each task's status, failure and spans."""
    isolation = {"type": "docker", "docker": "podman", "image": IMAGE, "python": python, **options}
    found = []

    @agl.algo
    async def once(*, store, train_dataset):
        for task in train_dataset:
            config = agl.RolloutConfig(timeout_seconds=task.get("timeout", 60))
            rollout = await store.enqueue_rollout(task, config=config)
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            [attempt] = await store.query_attempts(rollout.rollout_id)
            spans = await store.query_spans(rollout.rollout_id)
            found.append((attempt.status, attempt.error, spans))

    with EchoLLM() as llm:
        model = agl.LLM(endpoint=llm.url, model="echo", api_key="none")
        about = {"strategy": "shm", "runner": {"isolation": isolation}}
        trainer = agl.Trainer(algorithm=once, initial_resources={"llm": model}, **about)
        trainer.fit(boxed.agent, tasks)
    return found


def left_containers():
    """Names, states and disk of what podman has, as it says."""
    command = ["podman", "ps", "--all", "--external", "--noheading"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return said.stdout + said.stderr


def test_an_agent_has_its_model_and_nothing_else(python):
    with socket.create_server(("127.0.0.1", 0)) as other:
        task = {"port": other.getsockname()[1], "repository": str(HERE)}
        [(status, error, spans)] = run(python, [task])
    assert (status, error) == ("succeeded", None)
    assert agl.find_final_reward(spans) == 1.0
    [found] = [
        json.loads(span.attributes["agentlightning.object.json"])
        for span in spans
        if "agentlightning.object.json" in span.attributes
    ]
    assert found == {
        "user": 65534, "repository": False, "write": "OSError", "port": "ConnectionRefusedError",
    }  # fmt: skip
    assert not Path("/tmp/written").exists()
    assert left_containers() == ""


def test_one_that_dies_hangs_or_eats_memory_fails_alone(python):
    tasks = [{"does": "die"}, {"does": "sleep", "timeout": 20}, {"does": "eat"}]
    died, slept, ate = run(python, tasks, memory_mb=256)
    assert [one[0] for one in (died, slept, ate)] == ["failed", "timeout", "failed"]
    assert "its container gave no answer" in died[1].message
    assert left_containers() == ""


def test_attempts_that_succeed_leave_no_containers(python):
    done = run(python, [{"does": "nothing"}] * 3)
    assert [one[0] for one in done] == ["succeeded"] * 3
    assert left_containers() == ""
