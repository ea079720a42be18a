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

import agl
from agl.errors import RunnerStuckError, StoreUnavailableError
from agl.utils.life_cycle import worker_name

Store = agl.InMemoryLightningStore


# --- deadlines and cancellation


async def test_coroutine_is_cancelled_at_its_deadline(run_all: Any, memory_store: Store) -> None:
    cleaned_up = threading.Event()

    @agl.rollout
    async def agent(task):
        agl.emit_message("before")
        if task == "slow":
            try:
                await asyncio.sleep(30)
            finally:
                cleaned_up.set()
        return 1.0

    rollouts = await run_all(
        agent, memory_store, ["slow", "fast"], config=agl.RolloutConfig(timeout_seconds=0.6)
    )
    slow, fast = rollouts
    assert cleaned_up.is_set()
    assert (slow.status, slow.attempt.status, fast.status) == ("failed", "timeout", "succeeded")
    assert slow.attempt.error is not None
    assert slow.attempt.error.boundary == "timeout"
    assert len(await memory_store.query_spans(slow.rollout_id)) == 1


async def test_time_before_the_agent_is_called_counts_as_in_the_store(
    run_one: Any, memory_store: Store
) -> None:
    ran: list[float] = []

    class Slow:
        async def on_rollout_start(self, **context: Any) -> None:
            await asyncio.sleep(2)

    @agl.rollout
    async def agent(task):
        began = time.monotonic()
        try:
            await asyncio.sleep(30)
        finally:
            ran.append(time.monotonic() - began)

    config = agl.RolloutConfig(timeout_seconds=2.5)
    attempt = await run_one(agent, memory_store, config=config, hooks=[Slow()])
    assert attempt.status == "timeout"
    assert ran[0] < 2


async def test_plain_agent_that_never_returns_is_left_behind(
    run_all: Any, memory_store: Store
) -> None:
    release = threading.Event()

    @agl.rollout
    def agent(task):
        if task == "hang":
            release.wait(30)
        return 1.0

    rollouts = await run_all(
        agent, memory_store, ["hang", "next"], config=agl.RolloutConfig(timeout_seconds=0.6)
    )
    release.set()
    assert [r.attempt.status for r in rollouts] == ["timeout", "succeeded"]


async def test_runner_that_shall_be_replaced_says_so(memory_store: Store) -> None:
    release = threading.Event()

    @agl.rollout
    def agent(task):
        release.wait(30)

    for task in ("hang", "left for the next runner"):
        await memory_store.enqueue_rollout(task, config=agl.RolloutConfig(timeout_seconds=0.2))
    runner = agl.LitAgentRunner(agl.OtelTracer(), on_stuck="raise")
    with (
        runner.run_context(agent=agent, store=memory_store),
        pytest.raises(RunnerStuckError, match=r"ran longer than timeout_seconds=0\.2"),
    ):
        await runner.iter()
    release.set()
    hung, left = await memory_store.query_rollouts()
    assert (hung.status, left.status) == ("failed", "queuing")
    assert hung.attempt.status == "timeout"  # type: ignore


async def test_coroutine_that_blocks_its_loop_does_not_stop_the_run(
    run_all: Any, memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 0.1)
    release, beside = threading.Event(), threading.Event()

    @agl.rollout
    async def agent(task):
        if task == "block":
            await asyncio.to_thread(beside.wait, 3)
            release.wait(30)  # blocks every coroutine of this loop
        if task == "beside":
            beside.set()
            await asyncio.sleep(30)
        return 1.0

    blocking = agl.RolloutConfig(timeout_seconds=1.0)
    await memory_store.enqueue_rollout("block", config=blocking)
    await memory_store.enqueue_rollout("beside")
    await memory_store.enqueue_rollout("after")
    block, other, after = await run_all(agent, memory_store, num_rollouts=3, concurrency=2)
    release.set()
    assert block.attempt.status == "timeout"
    assert other.attempt.error is not None
    assert other.attempt.error.boundary == "lost"
    assert "blocked the event loop" in other.attempt.error.message
    assert after.status == "succeeded"


async def test_coroutine_that_ignores_its_cancellation_counts_as_stuck(
    run_all: Any, memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 0.1)

    @agl.rollout
    async def agent(task):
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.6)
        return 1.0

    with pytest.raises(RunnerStuckError):
        await run_all(
            agent,
            memory_store,
            ["x"],
            config=agl.RolloutConfig(timeout_seconds=0.1),
            on_stuck="raise",
        )
    (rollout,) = await memory_store.query_rollouts()
    assert rollout.attempt.status == "timeout"  # type: ignore


async def test_cancelled_rollout_stops_its_coroutine(
    run_all: Any, until: Any, memory_store: Store
) -> None:
    started = threading.Event()

    @agl.rollout
    async def agent(task):
        started.set()
        await asyncio.sleep(30)

    rollout = await memory_store.enqueue_rollout("x")
    running = asyncio.create_task(
        run_all(agent, memory_store, num_rollouts=1, heartbeat_interval=0.1)
    )
    await until(started.is_set)
    await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    (rollout,) = await running
    assert rollout.status == "cancelled"
    assert rollout.attempt.status == "failed"
    assert rollout.attempt.error is not None
    assert rollout.attempt.error.boundary == "cancelled"


async def test_result_that_comes_too_late_is_logged_and_the_run_goes_on(
    run_all: Any, memory_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @agl.rollout
    async def agent(task, rollout):
        if task == "late":
            await memory_store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="timeout"
            )
        return 1.0

    late, good = await run_all(agent, memory_store, ["late", "good"])
    assert (late.attempt.status, good.attempt.status) == ("timeout", "succeeded")
    assert "its result comes too late" in caplog.text


# --- workers and heartbeats


def test_worker_names_differ_between_hosts_processes_and_runners() -> None:
    assert worker_name(3) == f"{socket.gethostname()}-{os.getpid()}-3"
    assert worker_name(3, pid=7) == f"{socket.gethostname()}-7-3"


def test_runners_of_one_process_get_different_numbers() -> None:
    @agl.rollout
    def agent(task): ...

    names: set[str] = set()
    store = Store()
    runners = [agl.LitAgentRunner(agl.OtelTracer()) for _ in range(2)]
    for runner in runners:
        with runner.run_context(agent=agent, store=store):
            names.add(runner.get_worker_id())
    with runners[0].run_context(agent=agent, store=store, worker_id=77):
        assert runners[0].get_worker_id() == worker_name(77)
    assert len(names) == 2


async def test_heartbeats_keep_a_silent_attempt_alive(run_one: Any) -> None:
    store = Store(scan_interval_seconds=0.05)

    @agl.rollout
    def agent(task):
        time.sleep(2.5)
        return 1.0

    config = agl.RolloutConfig(unresponsive_seconds=1.6)
    attempt = await run_one(agent, store, config=config)
    assert attempt.status == "succeeded"
    worker = await store.get_worker_by_id(attempt.worker_id)
    assert worker is not None
    assert worker.heartbeat_stats is not None
    assert worker.heartbeat_stats["pid"] == os.getpid()
    assert worker.heartbeat_stats["host"] == socket.gethostname()
    assert worker.heartbeat_stats["num_running"] in (0, 1)
    await store.close()


async def test_agent_without_spans_is_shown_as_running(run_all: Any, memory_store: Store) -> None:
    release = threading.Event()

    @agl.rollout
    def agent(task):
        release.wait(30)

    rollout = await memory_store.enqueue_rollout("x")
    running = asyncio.create_task(
        run_all(agent, memory_store, num_rollouts=1, heartbeat_interval=0.1)
    )
    status = ""
    async with asyncio.timeout(25):
        while status != "running":
            await asyncio.sleep(0.01)
            (found,) = await memory_store.query_rollouts(rollout_id_in=[rollout.rollout_id])
            status = found.status
    release.set()
    (rollout,) = await running
    assert rollout.status == "succeeded"


async def test_heartbeat_that_fails_ends_nothing(
    run_one: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class NoWorkers(Store):
        async def update_worker(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("away")

    @agl.rollout
    async def agent(task):
        await asyncio.sleep(0.3)

    store = NoWorkers()
    with caplog.at_level(logging.WARNING, "agl"):
        attempt = await run_one(agent, store, heartbeat_interval=0.05)
    assert attempt.status == "succeeded"
    assert caplog.text.count("heartbeat of") == 1
