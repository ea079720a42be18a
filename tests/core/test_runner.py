import asyncio
import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import AgentResultError, ConfigError, StoreUnavailableError
from agl.runner import RolloutCancelledError, RunnerStuckError, worker_name
from agl.runner.heartbeat import gpu_stats
from agl.tracer.base import active_tracer

Store = agl.InMemoryLightningStore


async def run_all(
    agent: agl.LitAgent[Any],
    store: agl.LightningStore,
    tasks: Sequence[Any] = (),
    *,
    config: agl.RolloutConfig | None = None,
    mode: agl.RolloutMode | None = None,
    num_rollouts: int | None = None,
    tracer: agl.Tracer | None = None,
    hooks: Sequence[object] = (),
    **options: Any,
) -> list[agl.AttemptedRollout]:
    """Queue the tasks, run a runner until all are done, and return the rollouts."""
    for task in tasks:
        await store.enqueue_rollout(task, config=config, mode=mode)
    runner = agl.LitAgentRunner(
        tracer or agl.OtelTracer(), max_rollouts=num_rollouts or len(tasks), **options
    )
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        async with asyncio.timeout(4):
            await runner.iter()
    return list(await store.query_rollouts())  # type: ignore


async def run_one(agent: agl.LitAgent[Any], store: agl.LightningStore, **options: Any) -> Any:
    """The attempt that one queued task ends in."""
    (rollout,) = await run_all(agent, store, ["task"], **options)
    return rollout.attempt


async def until(condition: Any) -> None:
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 (other threads change it)
            await asyncio.sleep(0.005)


# --- results


@pytest.mark.parametrize(("value", "reward"), [(True, 1.0), (3, 3.0), (0.5, 0.5), (None, None)])
async def test_returned_number_is_the_final_reward(
    memory_store: Store, value: Any, reward: float | None
) -> None:
    @agl.rollout
    async def agent(task):
        agl.emit_reward(0.1)
        agl.emit_message("later")
        return value

    attempt = await run_one(agent, memory_store)
    spans = await memory_store.query_spans(attempt.rollout_id)
    assert attempt.status == "succeeded"
    assert agl.find_final_reward(spans) == (0.1 if reward is None else reward)
    if reward is not None:
        assert (spans[-1].name, spans[-1].sequence_id) == ("agentlightning.annotation", 3)
        assert len({span.trace_id for span in spans}) == 1


async def test_returned_spans_of_any_kind_become_the_attempts(memory_store: Store) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    now = time.time()

    @agl.rollout
    def agent(task):
        readable = TracerProvider().get_tracer("x").start_span("readable")
        readable.end()
        core = agl.emit_reward(0.7, propagate=False)
        own = agl.Span.from_attributes(name="own", attributes={"a": 1}, start_time=now)
        return [readable, own, core]

    attempt = await run_one(agent, memory_store)
    spans = await memory_store.query_spans(attempt.rollout_id)
    assert [span.name for span in spans] == ["readable", "own", "agentlightning.annotation"]
    assert [span.sequence_id for span in spans] == [1, 2, 3]
    assert {span.attempt_id for span in spans} == {attempt.attempt_id}
    assert agl.find_final_reward(spans) == 0.7


async def test_empty_list_is_a_result(memory_store: Store) -> None:
    @agl.rollout
    def agent(task):
        return []

    assert (await run_one(agent, memory_store)).status == "succeeded"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", r"returned '0\.5' \(str\); expected None, a finite number"),
        (float("nan"), r"returned nan \(float\).*finite"),
        ({"reward": 1.0}, r"returned \{'reward': 1\.0\} \(dict\)"),
        ([1.0], r"list with 1\.0 \(float\) in it"),
        (
            [agl.Span.from_attributes(attributes={}, name="s", rollout_id="ro-other")],
            "rollout_id 'ro-other'",
        ),
    ],
)
async def test_any_other_result_fails_the_attempt(
    memory_store: Store, value: Any, message: str
) -> None:
    @agl.rollout
    def agent(task):
        agl.emit_message("kept")
        return value

    attempt = await run_one(agent, memory_store)
    assert attempt.status == "failed"
    assert (attempt.error.boundary, attempt.error.type) == ("agent", "agl.errors.AgentResultError")
    assert re.search(message, attempt.error.message)
    assert len(await memory_store.query_spans(attempt.rollout_id)) == 1


# --- failures are data


@pytest.mark.parametrize("is_async", [True, False])
async def test_exception_is_stored_and_the_run_goes_on(memory_store: Store, is_async: bool) -> None:
    def work(task: str) -> float:
        agl.emit_message("before")
        if task == "exit":
            raise SystemExit(3)
        if task == "cancel":
            raise asyncio.CancelledError("by the agent itself")
        if task == "bad":
            raise LookupError("no such table")
        return 1.0

    if is_async:

        @agl.rollout
        async def agent(task):
            return work(task)

    else:

        @agl.rollout
        def agent(task):
            return work(task)

    rollouts = await run_all(agent, memory_store, ["bad", "exit", "cancel", "good"])
    assert [r.status for r in rollouts] == ["failed", "failed", "failed", "succeeded"]
    bad, exited, cancelled = (r.attempt.error for r in rollouts[:3])
    assert bad is not None
    assert (bad.boundary, bad.type, bad.message) == ("agent", "LookupError", "no such table")
    assert bad.traceback is not None
    first_frame = bad.traceback.splitlines()[1]
    assert "test_runner.py" in first_frame
    assert "in agent" in first_frame
    assert exited is not None
    assert exited.type == "SystemExit"
    assert cancelled is not None
    assert cancelled.type == "asyncio.exceptions.CancelledError"
    spans = [await memory_store.query_spans(rollout.rollout_id) for rollout in rollouts]
    assert [len(each) for each in spans] == [1, 1, 1, 2]


async def test_missing_resource_fails_at_its_own_boundary(memory_store: Store) -> None:
    @agl.rollout
    def agent(task, llm):
        return 1.0

    attempt = await run_one(agent, memory_store)
    assert (attempt.status, attempt.error.boundary) == ("failed", "resources")
    assert "parameter 'llm'" in attempt.error.message


async def test_mode_without_a_method_fails_the_attempt(memory_store: Store) -> None:
    class Agent(agl.LitAgent[str]):
        def training_rollout(self, task, resources, rollout):
            return 1.0

    attempt = await run_one(Agent(), memory_store, mode="val")
    assert attempt.status == "failed"
    assert "no rollout for mode 'val'" in attempt.error.message


class BrokenTracer(agl.DummyTracer):
    def __init__(self, moment: str) -> None:
        self.moment = moment

    @contextlib.asynccontextmanager
    async def trace_context(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        if self.moment == "enter":
            raise OSError("tracer does not start")
        with active_tracer(self):
            yield self
        raise OSError("tracer does not stop")


@pytest.mark.parametrize(("moment", "word"), [("enter", "start"), ("exit", "stop")])
async def test_tracer_that_raises_fails_the_attempt_at_its_boundary(
    memory_store: Store, moment: str, word: str
) -> None:
    @agl.rollout
    def agent(task):
        return 1.0

    attempt = await run_one(agent, memory_store, tracer=BrokenTracer(moment))
    assert (attempt.status, attempt.error.boundary) == ("failed", "tracer")
    assert attempt.error.message == f"tracer does not {word}"


async def test_retry_gets_a_fresh_attempt(memory_store: Store) -> None:
    seen: list[str] = []

    @agl.rollout
    async def agent(task, rollout):
        seen.append(rollout.attempt.attempt_id)
        if len(seen) == 1:
            raise ValueError("once")
        return 1.0

    config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
    (rollout,) = await run_all(agent, memory_store, ["x"], config=config, num_rollouts=2)
    assert rollout.status == "succeeded"
    attempts = await memory_store.query_attempts(rollout.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
    assert [attempt.attempt_id for attempt in attempts] == seen


async def test_store_that_fails_ends_the_runner(memory_store: Store) -> None:
    class Failing(Store):
        async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("gone")

    @agl.rollout
    async def agent(task):
        return 1.0

    with pytest.raises(StoreUnavailableError):
        await run_all(agent, Failing(), ["a", "b"])


# --- deadlines and cancellation


async def test_coroutine_is_cancelled_at_its_deadline(memory_store: Store) -> None:
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
        agent, memory_store, ["slow", "fast"], config=agl.RolloutConfig(timeout_seconds=0.2)
    )
    slow, fast = rollouts
    assert cleaned_up.is_set()
    assert (slow.status, slow.attempt.status, fast.status) == ("failed", "timeout", "succeeded")
    assert slow.attempt.error is not None
    assert slow.attempt.error.boundary == "timeout"
    assert len(await memory_store.query_spans(slow.rollout_id)) == 1


async def test_plain_agent_that_never_returns_is_left_behind(memory_store: Store) -> None:
    release = threading.Event()

    @agl.rollout
    def agent(task):
        if task == "hang":
            release.wait(30)
        return 1.0

    rollouts = await run_all(
        agent, memory_store, ["hang", "next"], config=agl.RolloutConfig(timeout_seconds=0.2)
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
    memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl.runner.call.CANCEL_SECONDS", 0.1)
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

    blocking = agl.RolloutConfig(timeout_seconds=0.3)
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
    memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl.runner.call.CANCEL_SECONDS", 0.1)

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


async def test_cancelled_rollout_stops_its_coroutine(memory_store: Store) -> None:
    started = threading.Event()

    @agl.rollout
    async def agent(task):
        started.set()
        await asyncio.sleep(30)

    rollout = await memory_store.enqueue_rollout("x")
    running = asyncio.create_task(
        run_all(agent, memory_store, num_rollouts=1, heartbeat_interval=0.1, interval_jitter=0.0)
    )
    await until(started.is_set)
    await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    (rollout,) = await running
    assert rollout.status == "cancelled"
    assert rollout.attempt.status == "failed"
    assert rollout.attempt.error is not None
    assert rollout.attempt.error.boundary == "cancelled"


async def test_result_that_comes_too_late_is_logged_and_the_run_goes_on(
    memory_store: Store, caplog: pytest.LogCaptureFixture
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


# --- many at once


async def test_coroutines_run_at_once_and_plain_functions_one_at_a_time(
    memory_store: Store,
) -> None:
    now, most, enough = 0, 0, 64
    are_enough = asyncio.Event()

    @agl.rollout
    async def coroutine(task):
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if now == enough:
            are_enough.set()
        await are_enough.wait()
        await asyncio.sleep(0.05)  # more would come now if they could
        now -= 1

    @agl.rollout
    def plain(task):
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        time.sleep(0.01)
        now -= 1

    await run_all(coroutine, memory_store, list(range(70)))
    assert most == 64
    most, enough = 0, 3
    are_enough = asyncio.Event()
    await run_all(coroutine, memory_store, list(range(7)), concurrency=3)
    assert most == 3
    most = 0
    await run_all(plain, memory_store, list(range(5)))
    assert most == 1
    most = 0
    await run_all(plain, memory_store, list(range(8)), concurrency=4)
    assert most > 1


async def test_rewards_of_rollouts_at_once_go_to_their_own(memory_store: Store) -> None:
    @agl.rollout
    async def agent(task):
        await asyncio.sleep(0.001 * (task % 5))
        agl.emit_reward(task / 2)
        with agl.operation(task=task):
            await asyncio.sleep(0.001 * (task % 3))
            await asyncio.to_thread(agl.emit_message, str(task))
        return task

    for rollout in await run_all(agent, memory_store, list(range(50))):
        spans = await memory_store.query_spans(rollout.rollout_id)
        assert [agl.get_reward_value(s) for s in spans] == [
            rollout.input / 2,
            None,
            None,
            rollout.input,
        ]
        assert agl.get_message_value(spans[1]) == str(rollout.input)


async def test_plain_agent_may_use_asyncio_and_hides_no_coroutine(memory_store: Store) -> None:
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


async def test_queued_rollout_starts_at_once(memory_store: Store) -> None:
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
    assert sorted(delays)[len(delays) // 2] < 0.1


async def test_stop_event_ends_an_idle_runner_soon(memory_store: Store) -> None:
    @agl.rollout
    async def agent(task): ...

    event, runner = agl.ThreadingEvent(), agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=memory_store):
        running = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(0.1)
        event.set()
        await asyncio.wait_for(running, 1.0)


async def test_stop_event_lets_what_runs_finish_and_then_cancels_it(memory_store: Store) -> None:
    started = threading.Event()

    @agl.rollout
    async def agent(task):
        started.set()
        await asyncio.sleep(task)
        return 1.0

    event = agl.ThreadingEvent()
    runner = agl.LitAgentRunner(agl.OtelTracer(), grace_seconds=0.5)
    await memory_store.enqueue_rollout(0.3)
    await memory_store.enqueue_rollout(30)
    with runner.run_context(agent=agent, store=memory_store):
        running = asyncio.create_task(runner.iter(event=event))
        await until(started.is_set)
        event.set()
        await memory_store.enqueue_rollout(0)
        await asyncio.wait_for(running, 3.0)
    short, long, unclaimed = await memory_store.query_rollouts()
    assert (short.status, long.status) == ("succeeded", "failed")
    assert unclaimed.status in ("queuing", "requeuing")
    assert long.attempt.error.boundary == "cancelled"  # type: ignore


async def test_cancelled_runner_records_what_ran_and_loses_no_claim(memory_store: Store) -> None:
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

    store, runner = SlowToAnswer(), agl.LitAgentRunner(agl.OtelTracer())
    await store.enqueue_rollout("runs")
    await store.enqueue_rollout("claimed")
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter())
        await until(lambda: started.is_set() and store.claimed)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    runs, claimed = await store.query_rollouts()
    assert runs.status == "failed"
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
    runner = agl.LitAgentRunner(agl.OtelTracer(), poll_interval=0.1)
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(0.5)
        event.set()
        await running
    assert 2 <= store.asked <= 8
    await store.close()


# --- step


async def test_step_returns_the_rollout_as_it_ended(memory_store: Store) -> None:
    @agl.rollout
    async def agent(task, prompt_template: agl.PromptTemplate, rollout: agl.Rollout) -> float:
        assert rollout.mode == "val"
        return float(prompt_template.format(x=task))

    runner = agl.LitAgentRunner(agl.OtelTracer())
    prompt = agl.PromptTemplate(template="{x}.5", engine="f-string")
    with runner.run_context(agent=agent, store=memory_store):
        rollout = await runner.step(3, resources={"main_prompt": prompt}, mode="val")
    assert (rollout.status, rollout.input, rollout.mode) == ("succeeded", 3, "val")
    assert agl.find_final_reward(await memory_store.query_spans(rollout.rollout_id)) == 3.5
    latest = await memory_store.get_latest_resources()
    assert latest is not None
    assert latest.resources_id == rollout.resources_id


@pytest.mark.parametrize("is_async", [True, False])
async def test_step_raises_what_the_agent_raised(memory_store: Store, is_async: bool) -> None:
    mine = ValueError("mine")

    @agl.rollout
    def plain(task):
        raise mine

    @agl.rollout
    async def coroutine(task):
        raise mine

    runner = agl.LitAgentRunner(agl.OtelTracer())
    with (
        runner.run_context(agent=coroutine if is_async else plain, store=memory_store),
        pytest.raises(ValueError, match="mine") as caught,
    ):
        await runner.step("x")
    assert caught.value is mine
    (rollout,) = await memory_store.query_rollouts()
    assert rollout.status == "failed"


async def test_step_raises_wrong_results_and_cancellation(memory_store: Store) -> None:
    @agl.rollout
    async def agent(task):
        if task == "long":
            await asyncio.sleep(30)
        return "text"

    runner, event = agl.LitAgentRunner(agl.OtelTracer()), agl.ThreadingEvent()
    with runner.run_context(agent=agent, store=memory_store):
        with pytest.raises(AgentResultError):
            await runner.step("short")
        asyncio.get_running_loop().call_later(0.2, event.set)
        with pytest.raises(RolloutCancelledError):
            await runner.step("long", event=event)


async def test_step_runs_a_coroutine_on_the_loop_of_the_caller(memory_store: Store) -> None:
    mine = asyncio.get_running_loop()

    @agl.rollout
    async def agent(task):
        assert asyncio.get_running_loop() is mine

    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=memory_store):
        assert (await runner.step("x")).status == "succeeded"


# --- resources


async def test_resources_are_the_rollouts_else_the_latest_else_none(memory_store: Store) -> None:
    seen: list[str] = []

    class Agent(agl.LitAgent[str]):
        async def rollout_async(self, task, resources, rollout):
            seen.append(f"{task}: {','.join(resources) or 'none'}")

    prompt = agl.PromptTemplate(template="x")
    await memory_store.enqueue_rollout("before any")
    await run_all(Agent(), memory_store, num_rollouts=1)
    first = await memory_store.add_resources({"first": prompt})
    await memory_store.add_resources({"second": prompt})
    await memory_store.enqueue_rollout("pinned", resources_id=first.resources_id)
    await memory_store.enqueue_rollout("latest")
    await run_all(Agent(), memory_store, num_rollouts=2)
    assert sorted(seen) == ["before any: none", "latest: second", "pinned: first"]


# --- hooks


async def test_hooks_are_called_in_order_and_within_the_trace(memory_store: Store) -> None:
    calls: list[str] = []

    class Watch(agl.Hook):
        async def on_rollout_start(self, *, agent, runner, rollout):
            calls.append(f"start {rollout.attempt.status}")

        async def on_trace_start(self, *, agent, runner, tracer, rollout):
            agl.emit_message("from the hook")
            calls.append("trace start")

        async def on_trace_end(self, *, agent, runner, tracer, rollout):
            calls.append(f"trace end {len(tracer.get_last_trace())}")

        async def on_rollout_end(self, *, agent, runner, rollout, spans):
            calls.append(
                f"end {rollout.status} {rollout.attempt.status} {agl.find_final_reward(spans)} "
                f"{[span.sequence_id for span in spans]}"
            )

    @agl.rollout
    def agent(task):
        calls.append("agent")
        if task == "bad":
            raise ValueError
        return 0.5

    await run_all(agent, memory_store, ["good"], hooks=[Watch()])
    middle = ["trace start", "agent", "trace end 1"]
    assert calls == ["start preparing", *middle, "end succeeded succeeded 0.5 [1, 2]"]
    calls.clear()
    await run_all(agent, memory_store, ["bad"], hooks=[Watch()])
    assert calls == ["start preparing", *middle, "end failed failed None [1]"]


async def test_hook_that_raises_fails_nothing(
    memory_store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGL_STRICT_PLUGINS", raising=False)

    class Broken(agl.Hook):
        async def on_trace_start(self, *, rollout):
            raise RuntimeError("hook")

    @agl.rollout
    async def agent(task):
        return 1.0

    rollouts = await run_all(agent, memory_store, ["a", "b"], hooks=[Broken()])
    assert [r.status for r in rollouts] == ["succeeded"] * 2
    assert caplog.text.count("on_trace_start raised RuntimeError: hook") == 1


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


@pytest.mark.parametrize("launch_mode", ["thread", "asyncio"])
async def test_heartbeats_keep_a_silent_attempt_alive(launch_mode: Any) -> None:
    store = Store(scan_interval_seconds=0.05)

    @agl.rollout
    def agent(task):
        time.sleep(1.5)
        return 1.0

    attempt = await run_one(
        agent,
        store,
        config=agl.RolloutConfig(unresponsive_seconds=0.8),
        heartbeat_launch_mode=launch_mode,
    )
    assert attempt.status == "succeeded"
    worker = await store.get_worker_by_id(attempt.worker_id)
    assert worker is not None
    assert worker.heartbeat_stats is not None
    assert worker.heartbeat_stats["pid"] == os.getpid()
    assert worker.heartbeat_stats["host"] == socket.gethostname()
    assert 0 <= worker.heartbeat_stats["memory_percent"] <= 100
    await store.close()


async def test_agent_without_spans_is_shown_as_running(memory_store: Store) -> None:
    release = threading.Event()

    @agl.rollout
    def agent(task):
        release.wait(3)

    rollout = await memory_store.enqueue_rollout("x")
    running = asyncio.create_task(
        run_all(agent, memory_store, num_rollouts=1, heartbeat_interval=0.1, interval_jitter=0.0)
    )
    status = ""
    async with asyncio.timeout(3):
        while status != "running":
            await asyncio.sleep(0.01)
            (found,) = await memory_store.query_rollouts(rollout_id_in=[rollout.rollout_id])
            status = found.status
    release.set()
    (rollout,) = await running
    assert rollout.status == "succeeded"


async def test_heartbeat_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class NoWorkers(Store):
        async def update_worker(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("away")

    @agl.rollout
    async def agent(task):
        await asyncio.sleep(0.3)

    store = NoWorkers()
    with caplog.at_level(logging.WARNING, "agl"):
        attempt = await run_one(agent, store, heartbeat_interval=0.05, interval_jitter=0.0)
    assert attempt.status == "succeeded"
    assert caplog.text.count("heartbeat of") == 1


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rollouts": 0}, "max_rollouts=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"poll_interval": 0}, "poll_interval=0"),
        ({"heartbeat_interval": -1}, "heartbeat_interval=-1"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agl.LitAgentRunner(agl.OtelTracer(), **options)


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
    with pytest.raises(ConfigError, match=r"has no agent yet; use it within runner.run_context"):
        await agl.LitAgentRunner(agl.OtelTracer()).iter()


def test_agent_without_any_rollout_is_refused() -> None:
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with (
        pytest.raises(ConfigError, match="'LitAgent' has no rollout"),
        runner.run_context(agent=agl.LitAgent(), store=Store()),
    ):
        pass
