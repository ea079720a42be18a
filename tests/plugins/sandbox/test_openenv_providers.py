"""What ``environment: {type: openenv}`` asks of OpenEnv's providers, with one that is played."""

import asyncio
import socket
import threading

import pytest

import agl
from agl.errors import ConfigError
from agl_runs.environments import load_environment

DID, MAY_START = [], threading.Event()


class Played:
    """A provider; its server is a socket that listens and never answers."""

    def __init__(self, fails=""):
        self._fails = fails
        if "away" in DID:
            raise RuntimeError("Docker is not available")

    def start(self, port=0, env_vars=None):
        DID.append(f"start {env_vars}")
        if self._fails == "late":
            MAY_START.wait(60)
        self._socket = socket.create_server(("127.0.0.1", port))
        DID.append("started")
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def wait_for_ready(self, seconds):
        if seconds > 1:  # whether it is still there
            raise TimeoutError

    def stop(self):
        self._socket.close()
        DID.append("stopped")
        if self._fails == "stop":
            raise TimeoutError("docker stop")


@agl.rollout
async def agent(task):
    return {"a": 1.0}[task["key"]]


class Agent(agl.LitAgent):
    async def rollout_async(self, task, resources, rollout):
        return float(bool(self.get_runner().get_worker_id()))


made = Agent()


def load(name="agent", **server):
    DID.clear()
    server = {"type": f"{__name__}:Played", **server}
    return load_environment({"type": "openenv", "agent": f"{__name__}:{name}", "server": server})


def run(environment, *tasks, did=()):
    DID[:] = did
    trainer = agl.Trainer(algorithm="baseline", strategy="shm")
    trainer.fit(environment.agent, list(tasks))
    return asyncio.run(trainer.store.query_rollouts()).items


def test_what_a_provider_cannot_stop_costs_no_rollout(caplog):
    (rollout,) = run(load(fails="stop", env_vars={"A": "b"}), {"key": "a"})
    assert (rollout.status, DID[0]) == ("succeeded", "start {'A': 'b'}")
    assert "did not stop a server: docker stop" in caplog.text


def test_a_provider_that_is_away_in_a_run_is_no_agents_failure():
    (rollout,) = run(load(), {"key": "a"}, did=["away"])
    assert rollout.attempt.error.boundary == "resources"
    assert "Docker is not available" in rollout.attempt.error.message


def test_error_of_an_agent_is_its_own_though_the_server_is_too_busy_to_answer():
    (rollout,) = run(load(), {"key": "b"})
    assert (rollout.attempt.error.boundary, rollout.attempt.error.type) == ("agent", "KeyError")


def test_agent_that_is_a_class_has_its_runner():
    assert [one.status for one in run(load("made"), {"key": "a"})] == ["succeeded"]


async def test_server_that_is_made_after_its_rollout_was_cancelled_is_stopped():
    DID.clear()
    roll = load(fails="late").agent.rollout_method("train")
    rollout = await agl.InMemoryLightningStore().start_rollout({"key": "a"})
    running = asyncio.create_task(roll(rollout.input, {}, rollout))
    while not DID:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.01)
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.01)
    MAY_START.set()
    while "stopped" not in DID:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert DID == ["start None", "started", "stopped"]
    await asyncio.wait([running])


@pytest.mark.parametrize("server", [{"image": "one"}, {"prot": 1}])
def test_options_that_nobody_takes_are_refused_before_a_run(server):
    with pytest.raises(ConfigError, match="OpenEnv's provider"):
        load(**server)
