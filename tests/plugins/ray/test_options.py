"""What the strategy refuses before anything starts, and how its parts go to other machines."""

import asyncio
import math
import multiprocessing
import os
import pickle
import sys
import threading
import types

import pytest
from tests.run_agents import running

import agl
from agl.errors import ConfigError
from agl_processes.supervisor import RunnerDied
from agl_ray import strategy
from agl_ray.actor import RunnerActor, _LeavingStore, _LeftError
from agl_ray.strategy import RayExecutionStrategy

LOCK = threading.Lock()


@agl.rollout
def agent(task: int) -> float:
    return float(task * LOCK.locked())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"runners": 0}, "runners must be at least 1; got 0"),
        ({"runners": 2, "n_runners": 3}, "runners and n_runners are one setting"),
        ({"runners": 2, "min_runners": 3}, "min_runners must be at least 1 and at most 2; got 3"),
        ({"runners_per_actor": 0}, "runners_per_actor must be at least 1; got 0"),
        ({"resources": {"cpu": -1}}, "resources.cpu must be at least 0; got -1"),
        ({"resources": {"most": 1, "cpu": "4"}}, "resources.cpu must be a number; got '4'"),
        ({"resources": {"CPU": 1}}, "resources has no 'CPU'; write 'cpu'"),
        ({"resources": {"gpus": 1}}, "resources has no 'gpus'; write 'gpu'"),
        ({"runtime_env": {"working_dir": "nowhere"}}, "working_dir: there is no 'nowhere' here"),
        ({"graceful_timeout": -1}, "graceful_timeout must be at least 0; got -1"),
        ({"server_host": "192.0.2.77"}, "192.0.2.77"),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        RayExecutionStrategy(address="local", **options).prepare()


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 1),
        ({"resources": {"cpu": 0.1}}, 8),
        ({"resources": {"cpu": 0}}, 8),
        ({"resources": {"cpu": 0.1, "gpu": 0.3}}, 3),
        ({"resources": {"cpu": 0.1}, "runners_per_actor": 16}, 16),
        ({"resources": {"cpu": 0.1, "memory": 200e6}}, 8),
        ({"resources": {"cpu": 0.1}, "runners": 4}, 4),
    ],
)
def test_actor_has_as_many_runners_as_one_cpu_or_gpu_has_room_for(options, number):
    given = {"runners": 64, "address": "local", **options}
    assert RayExecutionStrategy(**given).runners_per_actor == number


def test_run_of_one_role_is_refused(monkeypatch):
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    with pytest.raises(ConfigError, match="unset AGL_CURRENT_ROLE=runner"):
        RayExecutionStrategy(address="local")


async def test_project_beside_an_environment_is_no_part_of_it(monkeypatch, memory_store):
    jobs = []
    installed = [os.path.dirname(module.__file__) for module in (pytest, asyncio)]
    beside = [f"{sys.prefix}-project", f"{sys.base_prefix}/src/app"]
    monkeypatch.setattr(sys, "path", [*sys.path, *installed, *beside])
    ours = RayExecutionStrategy(address="local")
    ours._pickled, ours._shipped = b"", {}
    server = agl.LightningStoreServer(memory_store)
    await ours.on_reached(server, types.SimpleNamespace(send=jobs.append))
    path = jobs[0].work.path
    assert path[-2:] == beside
    assert not {*installed}.intersection(path)


def test_trainer_says_how_many(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://192.0.2.1:10001")
    trainer = agl.Trainer(strategy={"type": "ray", "resources": {"gpu": 0.5}}, n_runners=3)
    assert trainer.n_runners == 3
    assert trainer.strategy.address == "ray://192.0.2.1:10001"
    with pytest.raises(ConfigError, match="n_runners=3, and the strategy given has n_runners=2"):
        agl.Trainer(strategy=RayExecutionStrategy(runners=2), n_runners=3)


def test_agent_of_a_module_goes_by_name_and_its_trainer_stays(monkeypatch):
    module = types.ModuleType("a_module")
    monkeypatch.setitem(sys.modules, "a_module", module)
    monkeypatch.setattr(agent, "__module__", "a_module")
    module.agent = agent
    packed = strategy._pickled((agent,))
    assert pickle.loads(packed) == (agent,)
    assert len(packed) < 200
    ours = agl.LitAgent()
    ours.set_trainer(LOCK)  # as little to be pickled as a trainer
    assert pickle.loads(strategy._pickled(ours))._trainer is None


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(ConfigError, match=r"cannot be pickled \(TypeError: .*lock"):
        strategy._pickled(lambda: LOCK)


@pytest.mark.parametrize(
    ("message", "is_for_all"),
    [("StoreDiskError: store 'a': full", True), ("StoreUnavailableError: nothing answers", False)],
)
def test_full_disk_ends_the_run_and_not_a_node_that_is_cut_off(message, is_for_all):
    actor = object.__new__(RunnerActor)
    actor._numbers = range(4, 6)
    actor._pipe, process = multiprocessing.Pipe()
    process.send(RunnerDied(1, 77, message, False, store_away=True))
    said = actor.report()
    assert (said.worker_id, said.store_away) == (5, is_for_all)


async def test_runner_leaves_once_it_was_idle_for_a_while(monkeypatch, memory_store):
    monkeypatch.setattr("agl_ray.actor.IDLE_SECONDS", 0.8)
    store = _LeavingStore(memory_store, idle_since := [0.0, math.inf], 0)
    async with running(agent, store) as runner, asyncio.timeout(10):
        await asyncio.sleep(0.5)
        await memory_store.enqueue_rollout(1)  # it is not idle any more
        await asyncio.sleep(0.5)
        idle_since[1] = 0.0  # nor is the other of its actor busy
        assert not runner.done()
        with pytest.raises(_LeftError):
            await runner
