"""Attempts that must end: deadlines, cancellation, heartbeats."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from typing import Any

import pytest
from tests.run_agents import succeeds

import agl
from agl.errors import RunnerStuckError, StoreUnavailableError
from agl.utils.life_cycle import worker_name

Store = agl.InMemoryLightningStore


@pytest.fixture
def hangs():
    """A plain agent that does not return before the end of the test, except from "next"."""
    release = threading.Event()

    def agent(task):
        if task != "next":
            release.wait(30)
        return 1.0

    agent.release = release.set
    yield agent
    release.set()


def seconds(**config):
    return agl.RolloutConfig(**{f"{name}_seconds": value for name, value in config.items()})


async def test_coroutine_is_cancelled_at_its_deadline(run_all, memory_store):
    cleaned_up = threading.Event()

    async def agent(task):
        agl.emit_message("before")
        if task == "slow":
            try:
                await asyncio.sleep(30)
            finally:
                cleaned_up.set()
        return 1.0

    slow, fast = await run_all(agent, memory_store, ["slow", "fast"], config=seconds(timeout=0.6))
    assert cleaned_up.is_set()
    assert (slow.status, slow.attempt.status, fast.status) == ("failed", "timeout", "succeeded")
    assert slow.attempt.error.boundary == "timeout"
    assert len(await memory_store.query_spans(slow.rollout_id)) == 1


async def test_time_before_the_agent_is_called_counts_as_in_the_store(run_one, memory_store):
    ran: list[float] = []

    class Slow:
        async def on_rollout_start(self, **context: Any) -> None:
            await asyncio.sleep(2)

    async def agent(task):
        began = time.monotonic()
        try:
            await asyncio.sleep(30)
        finally:
            ran.append(time.monotonic() - began)

    attempt = await run_one(agent, memory_store, config=seconds(timeout=2.5), hooks=[Slow()])
    assert attempt.status == "timeout"
    assert ran[0] < 2


async def test_plain_agent_that_never_returns_is_left_behind(run_all, memory_store, hangs):
    rollouts = await run_all(hangs, memory_store, ["hang", "next"], config=seconds(timeout=0.6))
    assert [r.attempt.status for r in rollouts] == ["timeout", "succeeded"]


async def test_runner_that_shall_be_replaced_says_so(run_all, memory_store, hangs):
    tasks, options = ["hang", "left for the next"], {"on_stuck": "raise", "num_rollouts": 9}
    with pytest.raises(RunnerStuckError, match=r"ran longer than timeout_seconds=0\.2"):
        await run_all(hangs, memory_store, tasks, config=seconds(timeout=0.2), **options)
    hung, left = await memory_store.query_rollouts()
    assert (hung.status, left.status) == ("failed", "queuing")
    assert hung.attempt.status == "timeout"


async def test_coroutine_that_blocks_its_loop_stops_no_run(run_all, memory_store, monkeypatch):
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 0.1)
    release, beside = threading.Event(), threading.Event()

    async def agent(task):
        if task == "block":
            await asyncio.to_thread(beside.wait, 3)
            release.wait(30)  # blocks every coroutine of this loop
        if task == "beside":
            beside.set()
            await asyncio.sleep(30)
        return 1.0

    await memory_store.enqueue_rollout("block", config=seconds(timeout=1.0))
    await memory_store.enqueue_rollout("beside")
    await memory_store.enqueue_rollout("after")
    block, other, after = await run_all(agent, memory_store, num_rollouts=3, concurrency=2)
    release.set()
    assert block.attempt.status == "timeout"
    assert other.attempt.error.boundary == "lost"
    assert "blocked the event loop" in other.attempt.error.message
    assert after.status == "succeeded"


async def test_coroutine_that_ignores_its_cancellation_is_stuck(run_all, memory_store, monkeypatch):
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 0.1)

    async def agent(task):
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.6)
        return 1.0

    with pytest.raises(RunnerStuckError):
        await run_all(agent, memory_store, ["x"], config=seconds(timeout=0.1), on_stuck="raise")
    (rollout,) = await memory_store.query_rollouts()
    assert rollout.attempt.status == "timeout"


async def test_coroutine_that_cleans_up_in_its_own_time_is_not_stuck(
    run_all, memory_store, monkeypatch
):
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 0.1)

    @agl.rollout
    async def agent(task):
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.5)

    agent.cancel_seconds = 20.0
    await run_all(agent, memory_store, ["x"], config=seconds(timeout=0.1), on_stuck="raise")


async def test_cancelled_rollout_stops_its_coroutine(run_all, until, memory_store):
    started = threading.Event()

    async def agent(task):
        started.set()
        await asyncio.sleep(30)

    running = asyncio.create_task(run_all(agent, memory_store, ["x"], heartbeat_interval=0.1))
    await until(started.is_set)
    (rollout,) = await memory_store.query_rollouts()
    await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    (rollout,) = await running
    assert (rollout.status, rollout.attempt.status) == ("cancelled", "failed")
    assert rollout.attempt.error.boundary == "cancelled"


async def test_result_that_comes_too_late_is_logged_and_ends_no_run(run_all, memory_store, caplog):
    async def agent(task, rollout):
        if task == "late":
            await memory_store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="timeout"
            )
        return 1.0

    late, good = await run_all(agent, memory_store, ["late", "good"])
    assert (late.attempt.status, good.attempt.status) == ("timeout", "succeeded")
    assert "its result comes too late" in caplog.text


def test_worker_names_differ_between_hosts_processes_and_runners():
    assert worker_name(3) == f"{socket.gethostname()}-{os.getpid()}-3"
    assert worker_name(3, pid=7) == f"{socket.gethostname()}-7-3"


def test_runners_of_one_process_get_different_numbers():
    runners, names = [agl.LitAgentRunner(agl.OtelTracer()) for _ in range(2)], set()
    for runner in runners:
        with runner.run_context(agent=succeeds, store=Store()):
            names.add(runner.get_worker_id())
    with runners[0].run_context(agent=succeeds, store=Store(), worker_id=77):
        assert runners[0].get_worker_id() == worker_name(77)
    assert len(names) == 2


async def test_heartbeats_keep_a_silent_attempt_alive(run_one):
    store = Store(scan_interval_seconds=0.05)

    def agent(task):
        time.sleep(2.5)
        return 1.0

    attempt = await run_one(agent, store, config=seconds(unresponsive=1.6))
    assert attempt.status == "succeeded"
    worker = await store.get_worker_by_id(attempt.worker_id)
    said = worker.heartbeat_stats
    assert (said["pid"], said["host"]) == (os.getpid(), socket.gethostname())
    assert said["num_running"] in (0, 1)
    await store.close()


async def test_agent_without_spans_is_shown_as_running(run_all, memory_store, hangs):
    running = asyncio.create_task(run_all(hangs, memory_store, ["x"], heartbeat_interval=0.1))
    async with asyncio.timeout(25):
        while not await memory_store.query_rollouts(status_in=["running"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    hangs.release()
    assert [one.status for one in await running] == ["succeeded"]


async def test_heartbeat_that_fails_ends_nothing(run_one, caplog):
    class NoWorkers(Store):
        async def update_worker(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("away")

    agent = agl.rollout(lambda task: time.sleep(0.3))
    with caplog.at_level(logging.WARNING, "agl"):
        attempt = await run_one(agent, NoWorkers(), heartbeat_interval=0.05)
    assert attempt.status == "succeeded"
    assert caplog.text.count("heartbeat of") == 1
