"""Claiming rollouts and running many at once."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import ConfigError
from agl.runner.heartbeat import gpu_stats

Store = agl.InMemoryLightningStore


# --- many at once


@pytest.mark.parametrize(
    ("tasks", "options", "environment", "most"),
    [(3, {}, {}, 1), (70, {"concurrency": 64}, {}, 64), (7, {}, {"AGL_CONCURRENCY": "3"}, 3)],
)
async def test_so_many_coroutines_run_at_once_as_are_asked_for(
    run_all: Any,
    memory_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    options: dict[str, int],
    environment: dict[str, str],
    most: int,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    now, found, are_enough = 0, 0, asyncio.Event()

    @agl.rollout
    async def agent(task):
        nonlocal now, found
        now, found = now + 1, max(found, now + 1)
        if now == most:
            are_enough.set()
        await are_enough.wait()
        await asyncio.sleep(0.05)  # more would come now if they could
        now -= 1

    await run_all(agent, memory_store, list(range(tasks)), **options)
    assert found == most


@pytest.mark.parametrize(("options", "least", "most"), [({}, 1, 1), ({"concurrency": 4}, 2, 4)])
async def test_so_many_functions_run_at_once_at_most(
    run_all: Any, memory_store: Store, options: dict[str, int], least: int, most: int
) -> None:
    now, found = 0, 0

    @agl.rollout
    def agent(task):
        nonlocal now, found
        now, found = now + 1, max(found, now + 1)
        time.sleep(0.01)
        now -= 1

    await run_all(agent, memory_store, list(range(8)), **options)
    assert least <= found <= most


async def test_rewards_of_rollouts_at_once_go_to_their_own(
    run_all: Any, memory_store: Store
) -> None:
    @agl.rollout
    async def agent(task):
        await asyncio.sleep(0.001 * (task % 5))
        agl.emit_reward(task / 2)
        with agl.operation(task=task):
            await asyncio.sleep(0.001 * (task % 3))
            await asyncio.to_thread(agl.emit_message, str(task))
        return task

    for rollout in await run_all(agent, memory_store, list(range(50)), concurrency=50):
        spans = await memory_store.query_spans(rollout.rollout_id)
        assert [agl.get_reward_value(s) for s in spans] == [
            rollout.input / 2,
            None,
            None,
            rollout.input,
        ]
        assert agl.get_message_value(spans[1]) == str(rollout.input)


async def test_plain_agent_may_use_asyncio_and_hides_no_coroutine(
    run_all: Any, memory_store: Store
) -> None:
    async def answer(task: float) -> float:
        agl.emit_message("inside")
        return task

    @agl.rollout
    def inner_run(task):
        return asyncio.run(answer(task))

    @agl.rollout
    def returns_coroutine(task):
        return answer(task)

    for agent in (inner_run, returns_coroutine):
        *_, rollout = await run_all(agent, memory_store, [0.5])
        spans = await memory_store.query_spans(rollout.rollout_id)
        assert [agl.get_message_value(s) for s in spans] == ["inside", None]
        assert agl.find_final_reward(spans) == 0.5


# --- the loop


async def test_queued_rollout_starts_at_once(until: Any, memory_store: Store) -> None:
    starts: dict[int, float] = {}

    @agl.rollout
    async def agent(task):
        starts[task] = time.perf_counter()

    event, runner = agl.ThreadingEvent(), agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=memory_store):
        running = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(0.1)
        delays: list[float] = []
        for task in range(9):
            queued = time.perf_counter()
            await memory_store.enqueue_rollout(task)
            await until(lambda task=task: task in starts)
            delays.append(starts[task] - queued)
        event.set()
        await running
    # An idle runner that is not woken asks again after 5.0.
    assert sorted(delays)[len(delays) // 2] < 1.0


async def test_stop_event_ends_an_idle_runner_soon(memory_store: Store) -> None:
    @agl.rollout
    async def agent(task): ...

    event, runner = agl.ThreadingEvent(), agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=memory_store):
        running = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(0.1)
        event.set()
        await asyncio.wait_for(running, 60.0)


async def test_stop_event_lets_what_runs_finish_and_then_cancels_it(
    until: Any, memory_store: Store
) -> None:
    started = threading.Event()

    @agl.rollout
    async def agent(task):
        started.set()
        await asyncio.sleep(task)
        return 1.0

    event = agl.ThreadingEvent()
    runner = agl.LitAgentRunner(agl.OtelTracer(), grace_seconds=1.5, concurrency=2)
    await memory_store.enqueue_rollout(0.3)
    await memory_store.enqueue_rollout(30)
    with runner.run_context(agent=agent, store=memory_store):
        running = asyncio.create_task(runner.iter(event=event))
        await until(started.is_set)
        event.set()
        await memory_store.enqueue_rollout(0)
        await asyncio.wait_for(running, 25.0)
    short, long, unclaimed = await memory_store.query_rollouts()
    assert (short.status, long.status) == ("succeeded", "cancelled")
    assert unclaimed.status in ("queuing", "requeuing")
    assert long.attempt.error.boundary == "cancelled"  # type: ignore


async def test_failure_of_an_agent_keeps_its_type_and_traceback_through_a_stop(
    memory_store: Store,
) -> None:
    event, runner = agl.ThreadingEvent(), agl.LitAgentRunner(agl.OtelTracer())

    @agl.rollout
    async def agent(task):
        event.set()
        raise KeyError("mine")

    await memory_store.enqueue_rollout(1)
    with runner.run_context(agent=agent, store=memory_store):
        await runner.iter(event=event)
    (rollout,) = await memory_store.query_rollouts()
    error = rollout.attempt.error  # type: ignore
    assert (error.boundary, error.type) == ("cancelled", "KeyError")
    assert 'raise KeyError("mine")' in error.traceback


async def test_cancelled_runner_records_what_ran_and_loses_no_claim(
    until: Any, memory_store: Store
) -> None:
    started = threading.Event()

    class SlowToAnswer(Store):
        claimed = False

        async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
            answer = await super().dequeue_many_rollouts(**{**kwargs, "limit": 1})
            if answer and answer[0].input == "claimed":
                self.claimed = True
                await asyncio.sleep(0.2)
            return answer

    @agl.rollout
    async def agent(task):
        started.set()
        await asyncio.sleep(30)

    store, runner = SlowToAnswer(), agl.LitAgentRunner(agl.OtelTracer(), concurrency=2)
    await store.enqueue_rollout("runs")
    await store.enqueue_rollout("claimed")
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter())
        await until(lambda: started.is_set() and store.claimed)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    runs, claimed = await store.query_rollouts()
    assert runs.status == "cancelled"
    assert runs.attempt.error.boundary == "cancelled"  # type: ignore
    assert claimed.status == "requeuing"
    await store.close()


async def test_store_that_cannot_wait_is_not_asked_all_the_time(memory_store: Store) -> None:
    class Impatient(Store):
        asked = 0

        async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
            self.asked += 1
            return await super().dequeue_many_rollouts(**{**kwargs, "wait_seconds": 0.0})

    @agl.rollout
    async def agent(task): ...

    store, event = Impatient(), agl.ThreadingEvent()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(1.2)
        event.set()
        await running
    assert 2 <= store.asked <= 4
    await store.close()


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rollouts": 0}, "max_rollouts must be at least 1; got 0"),
        ({"concurrency": 0}, "concurrency must be at least 1; got 0"),
        ({"heartbeat_interval": -1}, "heartbeat_interval must be above 0; got -1"),
        ({"grace_seconds": float("nan")}, "grace_seconds must be a finite number; got nan"),
        ({"grade_timeout": "half"}, "grade_timeout must be a number; got 'half'"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agl.LitAgentRunner(agl.OtelTracer(), **options)


@pytest.mark.parametrize("value", ["0", "-2", "many"])
def test_a_wrong_variable_is_named_and_an_option_goes_before_it(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_CONCURRENCY", value)
    expected = f"AGL_CONCURRENCY='{value}': expected a whole number, at least 1"
    with pytest.raises(ConfigError, match=expected):
        agl.LitAgentRunner(agl.OtelTracer())
    with pytest.raises(ConfigError, match=expected):
        agl.Trainer(strategy="shm")
    assert agl.LitAgentRunner(agl.OtelTracer(), concurrency=2).concurrency == 2
    agl.Trainer(strategy="shm", concurrency=2)


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the tool prints with --format=csv,noheader,nounits on a machine with two GPUs.
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 17, 1024, 143771'\necho '1, B, 0, 3, 4'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second = gpu_stats()
    assert first == {
        "index": "0",
        "name": "NVIDIA H200",
        "utilization.gpu": "17",
        "memory.used": "1024",
        "memory.total": "143771",
    }
    assert second["index"] == "1"


def test_gpu_heartbeat_without_nvidia_smi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    @agl.rollout
    async def agent(task): ...

    runner = agl.LitAgentRunner(agl.OtelTracer(), heartbeat_include_gpu=True)
    with (
        runner.run_context(agent=agent, store=Store()),
        pytest.raises(ConfigError, match="nvidia-smi"),
    ):
        asyncio.run(runner.iter())


async def test_runner_outside_of_its_context_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"has no store yet; use it within runner.run_context"):
        await agl.LitAgentRunner(agl.OtelTracer()).iter()


def test_agent_without_any_rollout_is_refused() -> None:
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with (
        pytest.raises(ConfigError, match="'LitAgent' has no rollout"),
        runner.run_context(agent=agl.LitAgent(), store=Store()),
    ):
        pass
