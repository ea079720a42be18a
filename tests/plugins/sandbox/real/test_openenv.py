"""Agents with real servers of OpenEnv 0.10, which its UVProvider starts as processes."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

import agl
from agl.errors import ConfigError
from agl_runs.environments import load_environment

pytest.importorskip("openenv")
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

HERE, SEEN = Path(__file__), []


class Count(Action):
    by: int


class Counter(Environment):
    state, total = State(), 0

    def reset(self, **_):
        return Observation()

    def step(self, action, **_):
        self.total += action.by
        return Observation(reward=self.total) if self.total >= 0 else os._exit(1)


app = create_fastapi_app(Counter, Count, Observation)
"""What the servers run, which import this file."""


@agl.rollout
async def count(task):
    SEEN.append(task["openenv"])
    async with GenericEnvClient(base_url=task["openenv"]) as env:
        await env.reset()
        return [(await env.step({"by": by})).reward for by in task["steps"]][-1]


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "counter"\nversion = "1"\n')
    # uv takes uvicorn, which that project lacks, from the PATH: nothing is fetched.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = {"project_path": str(tmp_path), "app": f"{HERE.stem}:app", "context_timeout_s": 250}
    return load(type="uv", **place)


def load(**server):
    return load_environment({"type": "openenv", "agent": f"{__name__}:count", "server": server})


def is_running():
    lines = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    return any(b"test_openenv:app" in one.read_bytes() for one in lines if one.exists())


def ended(made, tasks):
    trainer = agl.Trainer(algorithm="baseline", strategy="shm", concurrency=3)
    trainer.fit(made.agent, tasks)
    rollouts = asyncio.run(trainer.store.query_rollouts()).items
    asyncio.run(trainer.store.close())
    return rollouts


def test_each_rollout_has_a_server_of_its_own_which_ends_with_it(made):
    rollouts = ended(made, [{"steps": [1, 2]}, {"steps": [-1]}, {"steps": []}])
    errors = {str(one.input["steps"]): one.attempt.error for one in rollouts}
    # One server died under its agent; another agent failed, and its server did not.
    assert {key: error and error.boundary for key, error in errors.items()} == {
        **{"[1, 2]": None, "[-1]": "resources", "[]": "agent"}
    }
    assert (len({*SEEN}), is_running()) == (3, False)


async def test_server_ends_whose_rollout_was_cancelled_as_it_started(made):
    rollout = await agl.InMemoryLightningStore().start_rollout({"steps": []})
    running = asyncio.create_task(made.agent.rollout_method("train")(rollout.input, {}, rollout))
    while not is_running():  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    assert not is_running()
    async with asyncio.timeout(60):  # no thread waits on for the server
        await asyncio.get_running_loop().shutdown_default_executor()


def test_server_that_ends_as_it_starts_is_not_waited_for(made, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]")
    begun = time.monotonic()
    (rollout,) = ended(made, [{"steps": []}])
    assert "exited prematurely" in rollout.attempt.error.message
    assert time.monotonic() - begun < 125  # half of context_timeout_s


@pytest.mark.parametrize(
    "server", [{"type": "dockr"}, {"type": "uv", "project_path": ".", "image": "one"}, {"x": 1}]
)
def test_what_openenv_does_not_have_is_refused_before_a_run(server):
    with pytest.raises(ConfigError):
        load(**server)
