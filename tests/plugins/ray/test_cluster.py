"""What becomes of actors, with a Ray that only says what it is told to."""

import asyncio
import concurrent.futures
import multiprocessing
import sys
import types

import pytest
from tests.stores import served

import agl
from agl_processes.reports import Reports
from agl_processes.runner_process import FINISHED
from agl_processes.supervisor import MAX_VAIN_STARTS, RunnerDied, RunnerStarted
from agl_ray import cluster
from agl_ray.strategy import RayExecutionStrategy


class RayError(Exception):
    pass


class FakeRay(types.SimpleNamespace):
    """Each actor reports what ``reports`` has next, and then dies, or waits for its end."""

    def __init__(self, reports=(), dies=True):
        super().__init__(exceptions=types.SimpleNamespace(RayError=RayError), kill=lambda actor: 0)
        self.reports, self.dies, self.actors, self.waiting = [*reports], dies, 0, []

    def remote(self, kind):
        return self

    def options(self, **options):
        return types.SimpleNamespace(remote=self.start)

    def start(self, work):
        self.actors += 1
        if not self.reports:
            raise ValueError("no more actors")
        said = iter(self.reports.pop(0))

        def report():
            answer = concurrent.futures.Future()
            if (one := next(said, None)) is not None:
                answer.set_result(one)
            elif self.dies:
                answer.set_exception(RayError("it was killed"))
            else:
                self.waiting.append(answer)
            return types.SimpleNamespace(future=lambda: answer)

        def stop():
            for answer in self.waiting:
                answer.set_result(FINISHED)
            return report()

        return types.SimpleNamespace(
            report=types.SimpleNamespace(remote=report), stop=types.SimpleNamespace(remote=stop)
        )

    def nodes(self):
        return []


async def kept(monkeypatch, server, ray, **options):
    """Keep actors to their end; why they ended, and all that was said of runners."""
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(cluster, "END_SECONDS", 0.1)
    strategy, jobs = RayExecutionStrategy(address="local", **options), []
    strategy._pickled, strategy._shipped = b"", {}
    await strategy.on_reached(server, types.SimpleNamespace(send=jobs.append))
    run, theirs = multiprocessing.Pipe()
    actors = cluster._Actors(jobs[0], theirs)
    try:
        await asyncio.wait_for(actors.keep(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(theirs.fileno())
    said = []
    while run.poll():
        said.append(run.recv())
    return actors.because, said


@pytest.mark.parametrize("error", [agl.errors.ConfigError, agl.errors.NotAllowedError])
async def test_queue_that_may_not_be_read_ends_the_run(monkeypatch, memory_store, error):
    async def refuse(*_, **__):
        raise error("no token")

    monkeypatch.setattr(agl.LightningStoreClient, "query_rollouts", refuse)
    ray = FakeRay([[RunnerStarted(0, 7, "host-7-0")]], dies=False)
    async with served(memory_store) as (server, _):
        because, _ = await kept(monkeypatch, server, ray, runners=2, min_runners=1)
    assert because == f"{error.__name__}: no token"


@pytest.mark.parametrize(
    ("claimed", "given_up", "actors"),
    [(0, [False, False, True], MAX_VAIN_STARTS), (5, [False] * 5, 6)],
)
async def test_actor_that_dies_is_given_up_unless_it_has_claimed(
    monkeypatch, memory_store, claimed, given_up, actors
):
    started = [RunnerStarted(0, number, f"host-{number}-0") for number in range(1, 6)]
    ray = FakeRay([one] for one in started)
    for one in started[:claimed]:
        await memory_store.dequeue_many_rollouts(worker_id=one.name)  # in vain
    async with served(memory_store) as (server, _):
        _, said = await kept(monkeypatch, server, ray)
    assert [one.given_up for one in said if isinstance(one, RunnerDied)] == given_up
    assert ray.actors == actors


@pytest.mark.parametrize("reported", [(), (RunnerStarted(1, 8, "host-8-1"),)])
async def test_what_runs_when_its_start_was_not_reported_is_lost(
    monkeypatch, memory_store, reported
):
    ray = FakeRay([reported])
    for _ in range(3):
        await memory_store.enqueue_rollout(1)
    claims = {
        name: (await memory_store.dequeue_many_rollouts(worker_id=name))[0]
        for name in ("host-7-0", "host-8-1", "host-9-2")
    }
    options = {"runners": 2, "resources": {"cpu": 0.1}}
    reports = Reports()
    async with served(memory_store) as (server, _):
        _, said = await kept(monkeypatch, server, ray, **options)
        reports.open()
        for one in said:
            reports.deliver(one)
        await reports.follow_rest(server, 5)
    ids = [one.rollout_id for one in claims.values()]
    found = [(await memory_store.get_rollout_by_id(one)).status for one in ids]
    assert found[:2] == ["failed", "failed"]
    assert found[2] in ("preparing", "running")  # of none of this actor


async def test_actor_that_never_began_is_no_worker_of_the_store(monkeypatch, memory_store, caplog):
    async with served(memory_store) as (server, _):
        _, said = await kept(monkeypatch, server, FakeRay([()] * 3))
        reports, asked = Reports(), []
        monkeypatch.setattr(
            type(memory_store), "get_worker_by_id", lambda _, name: asked.append(name)
        )
        reports.open()
        for one in said:
            reports.deliver(one)
        await reports.follow_rest(memory_store, 5)
    assert (len(said), asked) == (3, [])
    assert "Runner 0 (which had not begun) is given up: it was killed" in caplog.text
