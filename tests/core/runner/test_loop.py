"""Claiming rollouts and running many at once."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.run_agents import cancelled, running, succeeds

import agl
from agl.errors import ConfigError, RunnerStuckError, StoreUnavailableError
from agl.runner.heartbeat import gpu_stats

Store = agl.InMemoryLightningStore


@pytest.mark.parametrize(
    ("tasks", "options", "environment", "most"),
    [(3, {}, {}, 1), (70, {"concurrency": 64}, {}, 64), (7, {}, {"AGL_CONCURRENCY": "3"}, 3)],
)
async def test_so_many_coroutines_run_at_once_as_are_asked_for(
    run_all, memory_store, monkeypatch, tasks, options, environment, most
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    now, found, are_enough = 0, 0, asyncio.Event()

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
async def test_so_many_functions_run_at_once_at_most(run_all, memory_store, options, least, most):
    now, found = 0, 0

    def agent(task):
        nonlocal now, found
        now, found = now + 1, max(found, now + 1)
        time.sleep(0.01)
        now -= 1

    await run_all(agent, memory_store, list(range(8)), **options)
    assert least <= found <= most


async def test_rewards_of_rollouts_at_once_go_to_their_own(run_all, memory_store):
    async def agent(task):
        await asyncio.sleep(0.001 * (task % 5))
        agl.emit_reward(task / 2)
        with agl.operation(task=task):
            await asyncio.sleep(0.001 * (task % 3))
            await asyncio.to_thread(agl.emit_message, str(task))
        return task

    for rollout in await run_all(agent, memory_store, list(range(50)), concurrency=50):
        spans = await memory_store.query_spans(rollout.rollout_id)
        rewards = [agl.get_reward_value(span) for span in spans]
        assert rewards == [rollout.input / 2, None, None, rollout.input]
        assert agl.get_message_value(spans[1]) == str(rollout.input)


async def test_plain_agent_may_use_asyncio_and_hides_no_coroutine(run_all, memory_store):
    async def answer(task: float) -> float:
        agl.emit_message("inside")
        return task

    def runs_inside(task):
        return asyncio.run(answer(task))

    def returns_coroutine(task):
        return answer(task)

    for agent in (runs_inside, returns_coroutine):
        *_, rollout = await run_all(agent, memory_store, [0.5])
        spans = await memory_store.query_spans(rollout.rollout_id)
        assert [agl.get_message_value(s) for s in spans] == ["inside", None]
        assert agl.find_final_reward(spans) == 0.5


async def test_queued_rollout_starts_at_once_and_an_idle_runner_stops_soon(until, memory_store):
    starts: dict[int, float] = {}

    async def agent(task):
        starts[task] = time.perf_counter()

    event, delays = agl.ThreadingEvent(), []
    async with running(agent, memory_store, event=event) as task:
        await asyncio.sleep(0.1)
        for number in range(9):
            queued = time.perf_counter()
            await memory_store.enqueue_rollout(number)
            await until(lambda number=number: number in starts)
            delays.append(starts[number] - queued)
        event.set()
        await asyncio.wait_for(task, 60.0)
    # An idle runner that is not woken asks again after 5.0.
    assert sorted(delays)[len(delays) // 2] < 1.0


async def test_stop_event_lets_what_runs_finish_and_then_cancels_it(until, memory_store):
    started = threading.Event()

    async def agent(task):
        started.set()
        await asyncio.sleep(task)
        return 1.0

    options = {"event": agl.ThreadingEvent(), "grace_seconds": 1.5, "concurrency": 2}
    for seconds in (0.3, 30):
        await memory_store.enqueue_rollout(seconds)
    async with running(agent, memory_store, **options) as task:
        await until(started.is_set)
        options["event"].set()
        await memory_store.enqueue_rollout(0)
        await asyncio.wait_for(task, 25.0)
    short, long, unclaimed = await memory_store.query_rollouts()
    assert (short.status, long.status) == ("succeeded", "cancelled")
    assert unclaimed.status in ("queuing", "requeuing")
    assert long.attempt.error.boundary == "cancelled"


async def test_failure_of_an_agent_keeps_its_type_and_traceback_through_a_stop(memory_store):
    event = agl.ThreadingEvent()

    async def agent(task):
        event.set()
        raise KeyError("mine")

    await memory_store.enqueue_rollout(1)
    async with running(agent, memory_store, event=event) as task:
        await task
    (rollout,) = await memory_store.query_rollouts()
    error = rollout.attempt.error
    assert (error.boundary, error.type) == ("cancelled", "KeyError")
    assert 'raise KeyError("mine")' in error.traceback


async def test_cancelled_runner_records_what_ran_and_loses_no_claim(until, memory_store):
    started = threading.Event()

    class SlowToAnswer(Store):
        claimed = False

        async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
            answer = await super().dequeue_many_rollouts(**{**kwargs, "limit": 1})
            if answer and answer[0].input == "claimed":
                self.claimed = True
                await asyncio.sleep(0.2)
            return answer

    async def agent(task):
        started.set()
        await asyncio.sleep(30)

    store = SlowToAnswer()
    for task in ("runs", "claimed"):
        await store.enqueue_rollout(task)
    async with running(agent, store, concurrency=2) as runner:
        await until(lambda: started.is_set() and store.claimed)
        await cancelled(runner)
    runs, claimed = await store.query_rollouts()
    assert (runs.status, claimed.status) == ("cancelled", "requeuing")
    assert runs.attempt.error.boundary == "cancelled"
    await store.close()


@pytest.mark.parametrize(("waits", "times"), [(False, (2, 3, 4)), (True, (1,))])
async def test_idle_runner_asks_seldom_beats_and_stops_soon(waits, times):
    class Counting(Store):
        asked = beats = 0

        async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
            self.asked += 1
            kwargs |= {} if waits else {"wait_seconds": 0.0}
            return await super().dequeue_many_rollouts(**kwargs)

        async def update_worker(self, *args: Any, **kwargs: Any) -> Any:
            self.beats += 1
            return await super().update_worker(*args, **kwargs)

    store, event = Counting(), agl.ThreadingEvent()
    options: Any = {"event": event, "heartbeat_interval": 0.1}
    async with running(succeeds, store, **options) as task, asyncio.timeout(10):
        await asyncio.sleep(1.2)
        event.set()
        await task
    assert store.asked in times
    assert store.beats > 2
    await store.close()


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), RunnerStuckError("hangs")])
async def test_claim_that_waits_holds_up_no_end_of_the_runner(error):
    class Waiting(Store):
        waits = False

        async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
            self.waits = not self._has_queued()
            return await super().dequeue_many_rollouts(**kwargs)

        async def turn(self, *args: Any, **kwargs: Any) -> Any:
            if isinstance(error, StoreUnavailableError):
                raise error
            return await super().turn(*args, **kwargs)

    def agent(task):
        while not store.waits:
            time.sleep(0.01)
        if isinstance(error, RunnerStuckError):
            time.sleep(2)

    store = Waiting()
    await store.enqueue_rollout(1, config=agl.RolloutConfig(timeout_seconds=0.5))
    options: Any = {"concurrency": 2, "on_stuck": "raise"}
    async with running(agent, store, **options) as task, asyncio.timeout(10):
        with pytest.raises(type(error)):
            await task
    await store.close()


async def test_no_more_than_max_rollouts_are_run_while_a_claim_waits(memory_store):
    options: Any = {"max_rollouts": 2, "concurrency": 2}
    async with running(succeeds, memory_store, **options) as task, asyncio.timeout(10):
        for number in range(2):
            rollout = await memory_store.enqueue_rollout(number)
            await memory_store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await memory_store.enqueue_rollout(2)
        await task
    statuses = [rollout.status for rollout in await memory_store.query_rollouts()]
    assert statuses == ["succeeded", "succeeded", "queuing"]


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
def test_senseless_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        agl.LitAgentRunner(agl.OtelTracer(), **options)


@pytest.mark.parametrize("value", ["0", "-2", "many"])
def test_a_wrong_variable_is_named_and_an_option_goes_before_it(value, monkeypatch):
    monkeypatch.setenv("AGL_CONCURRENCY", value)
    expected = f"AGL_CONCURRENCY='{value}': expected a whole number, at least 1"
    with pytest.raises(ConfigError, match=expected):
        agl.LitAgentRunner(agl.OtelTracer())
    with pytest.raises(ConfigError, match=expected):
        agl.Trainer(strategy="shm")
    assert agl.LitAgentRunner(agl.OtelTracer(), concurrency=2).concurrency == 2
    agl.Trainer(strategy="shm", concurrency=2)


def test_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    # What the tool prints with --format=csv,noheader,nounits on a machine with two GPUs.
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 17, 1024, 143771'\necho '1, B, 0, 3, 4'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second = gpu_stats()
    values = {"name": "NVIDIA H200", "memory.used": "1024", "memory.total": "143771"}
    assert first == {"index": "0", "utilization.gpu": "17", **values}
    assert second["index"] == "1"


async def test_gpu_heartbeat_without_nvidia_smi_is_refused(run_one, memory_store, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="nvidia-smi"):
        await run_one(succeeds, memory_store, heartbeat_include_gpu=True)


async def test_runner_outside_of_its_context_says_what_is_missing():
    with pytest.raises(ConfigError, match=r"has no store yet; use it within runner.run_context"):
        await agl.LitAgentRunner(agl.OtelTracer()).iter()


async def test_agent_without_any_rollout_is_refused(run_one, memory_store):
    with pytest.raises(ConfigError, match="'LitAgent' has no rollout"):
        await run_one(agl.LitAgent(), memory_store)
