"""What becomes of one attempt: results, failures, resources, hooks; and ``step``."""

import asyncio
import contextlib
import re
import time
from typing import Any

import pytest
from tests.run_agents import succeeds

import agl
from agl.algorithm.gateway import GatewayClient
from agl.emitter import reward_attributes
from agl.errors import AgentResultError
from agl.runner import RolloutCancelledError
from agl.tracer.base import active_tracer
from agl_testing.store_steps import span_of


@pytest.mark.parametrize(
    ("value", "reward"),
    [(True, 1.0), (3, 3.0), (0.5, 0.5), (None, None), ([], None), ({"acc": 1, "short": 0.5}, 1.0)],
)
async def test_returned_number_is_the_final_reward(run_one, memory_store, value, reward):
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


async def test_returned_spans_of_any_kind_become_the_attempts(run_one, memory_store):
    from opentelemetry.sdk.trace import TracerProvider

    now = time.time()

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


OF_ANOTHER = agl.Span.from_attributes(attributes={}, name="s", rollout_id="ro-other")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", r"returned '0\.5' \(str\); expected None, a finite number"),
        (float("nan"), r"returned nan \(float\).*finite"),
        ({"acc": 1.0, "said": "42"}, r"a dict of them .*a reward is a number; got '42'"),
        ({}, r"none of the rewards \{\}"),
        ((1.0, "why"), r"returned \(1\.0, 'why'\) \(tuple\)"),
        ([1.0], r"list with 1\.0 \(float\) in it"),
        ([OF_ANOTHER], "rollout_id 'ro-other'"),
    ],
)
async def test_any_other_result_fails_the_attempt(run_one, memory_store, value, message):
    def agent(task):
        agl.emit_message("kept")
        return value

    attempt = await run_one(agent, memory_store)
    assert attempt.status == "failed"
    assert (attempt.error.boundary, attempt.error.type) == ("agent", "agl.errors.AgentResultError")
    assert re.search(message, attempt.error.message)
    assert len(await memory_store.query_spans(attempt.rollout_id)) == 1


async def test_coroutine_that_nobody_awaited_is_named(run_one, memory_store):
    made = asyncio.sleep(0, 1.0)

    async def agent(task):
        return made

    attempt = await run_one(agent, memory_store)
    assert "(coroutine); did you forget await?" in attempt.error.message
    assert await made == 1.0


@pytest.mark.parametrize("is_async", [True, False])
async def test_exception_is_stored_and_the_run_goes_on(run_all, memory_store, is_async):
    def agent(task):
        agl.emit_message("before")
        if task == "exit":
            raise SystemExit(3)
        if task == "cancel":
            raise asyncio.CancelledError("by the agent itself")
        if task == "bad":
            raise LookupError("no such table")
        return 1.0

    async def agent_on_the_loop(task):
        return agent(task)

    given = agent_on_the_loop if is_async else agent
    rollouts = await run_all(given, memory_store, ["bad", "exit", "cancel", "good"])
    assert [r.status for r in rollouts] == ["failed", "failed", "failed", "succeeded"]
    bad, exited, cancelled = (r.attempt.error for r in rollouts[:3])
    assert (bad.boundary, bad.type, bad.message) == ("agent", "LookupError", "no such table")
    assert re.search("test_attempt.py.* in agent", bad.traceback.splitlines()[1])
    assert exited.type == "SystemExit"
    assert cancelled.type == "asyncio.exceptions.CancelledError"
    spans = [await memory_store.query_spans(rollout.rollout_id) for rollout in rollouts]
    assert [len(each) for each in spans] == [1, 1, 1, 2]


class TrainsOnly(agl.LitAgent[str]):
    def training_rollout(self, task, resources, rollout):
        return 1.0


@pytest.mark.parametrize(
    ("agent", "boundary", "said"),
    [
        (lambda task, llm: 1.0, "resources", "parameter 'llm'"),
        (TrainsOnly(), "agent", "no rollout for mode 'val'"),
    ],
    ids=["resource", "method"],
)
async def test_what_an_agent_lacks_fails_the_attempt(run_one, memory_store, agent, boundary, said):
    attempt = await run_one(agent, memory_store, mode="val")
    assert (attempt.status, attempt.error.boundary) == ("failed", boundary)
    assert said in attempt.error.message


async def test_gateway_that_nobody_can_ask_fails_the_attempt(run_one, memory_store, monkeypatch):
    monkeypatch.setattr("agl.plugins.registry.components", lambda group=None: [])
    llm = agl.ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="m")
    await memory_store.add_resources({"llm": llm})
    attempt = await run_one(lambda task, llm: 1.0, memory_store)
    assert (attempt.status, attempt.error.boundary) == ("failed", "agent")
    assert "agl-gateway" in attempt.error.message


class BrokenTracer(agl.DummyTracer):
    def __init__(self, moment: str) -> None:
        self.moment = moment

    @contextlib.asynccontextmanager
    async def trace_context(self, *args: Any, **kwargs: Any):
        if self.moment == "start":
            raise OSError("tracer does not start")
        with active_tracer(self):
            yield self
        raise OSError("tracer does not stop")


@pytest.mark.parametrize("moment", ["start", "stop"])
async def test_tracer_that_raises_fails_the_attempt_at_its_boundary(run_one, memory_store, moment):
    attempt = await run_one(succeeds, memory_store, tracer=BrokenTracer(moment))
    assert (attempt.status, attempt.error.boundary) == ("failed", "tracer")
    assert attempt.error.message == f"tracer does not {moment}"


async def test_retry_gets_a_fresh_attempt(run_all, memory_store):
    seen: list[str] = []

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


async def test_resources_are_the_rollouts_else_the_latest_else_none(run_all, memory_store):
    seen: list[str] = []

    async def agent(task, resources):
        seen.append(f"{task}: {','.join(resources) or 'none'}")

    prompt = agl.PromptTemplate(template="x")
    await memory_store.enqueue_rollout("before any")
    await run_all(agent, memory_store, num_rollouts=1)
    first = await memory_store.add_resources({"first": prompt})
    await memory_store.add_resources({"second": prompt})
    await memory_store.enqueue_rollout("pinned", resources_id=first.resources_id)
    await memory_store.enqueue_rollout("latest")
    await run_all(agent, memory_store, num_rollouts=2)
    assert sorted(seen) == ["before any: none", "latest: second", "pinned: first"]


async def test_hooks_are_called_in_order_and_within_the_trace(run_all, memory_store):
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
            numbers = [span.sequence_id for span in spans]
            of = f"{rollout.status} {rollout.attempt.status} {agl.find_final_reward(spans)}"
            calls.append(f"end {of} {numbers}")

    def agent(task):
        calls.append("agent")
        if task == "bad":
            raise ValueError
        return 0.5

    middle = ["trace start", "agent", "trace end 1"]
    for task, end in (("good", "succeeded 0.5 [1, 2]"), ("bad", "failed None [1]")):
        calls.clear()
        await run_all(agent, memory_store, [task], hooks=[Watch()])
        assert calls == ["start preparing", *middle, f"end running {end}"]


@pytest.mark.parametrize("end", ["failed", "succeeded"])
async def test_reward_that_a_hook_adds_at_the_end_is_the_final_one(run_all, memory_store, end):
    seen: list[str] = []

    class Score(agl.Hook):
        async def on_rollout_end(self, *, runner, rollout, spans):
            store = runner.get_store()
            stored = await store.query_spans(rollout.rollout_id)
            assert [span.span_id for span in spans] == [span.span_id for span in stored]
            held = await store.get_rollout_by_id(rollout.rollout_id)
            seen.append(f"{held.status} {held.attempt.status}, to be {rollout.attempt.status}")
            await store.add_span(span_of(rollout, attributes=reward_attributes(0.9)))

        async def on_attempt_end(self, *, attempt):
            seen.append(attempt.status)

    def agent(task):
        agl.emit_message("begun")
        if end == "failed":
            raise ValueError
        return 0.1

    (rollout,) = await run_all(agent, memory_store, ["x"], hooks=[Score()])
    assert seen == [f"running running, to be {end}", end]
    assert rollout.status == end
    spans = await memory_store.query_spans(rollout.rollout_id)
    assert agl.find_final_reward(spans) == 0.9
    assert [span.late for span in spans] == [False] * len(spans)


@pytest.mark.parametrize(
    "slow", ["on_rollout_start", "on_trace_start", "on_trace_end", "gateway", "on_rollout_end"]
)
async def test_attempt_shows_life_whatever_it_waits_for(run_all, memory_store, monkeypatch, slow):
    async def last_beat(rollout: agl.Rollout) -> float:
        attempt = await memory_store.get_latest_attempt(rollout.rollout_id)
        assert attempt.status in ("preparing", "running")
        return attempt.last_heartbeat_time or 0.0

    async def wait_for_beat(rollout: agl.Rollout) -> None:
        began = await last_beat(rollout)
        async with asyncio.timeout(60):
            while await last_beat(rollout) == began:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        waited.append(slow)

    class Slow(GatewayClient):
        async def open(self, store, rollout, resources):
            return resources

        async def wait_for_earlier_calls(self, rollout, spans, *, at_end=False):
            return len(spans) + at_end, True

        async def end(self, rollout, *, patient=True):
            await wait_for_beat(rollout)

    hook = agl.Hook()
    if slow == "gateway":
        monkeypatch.setattr("agl.plugins.registry.load_only", lambda group: Slow)
        llm = agl.ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="m")
        await memory_store.add_resources({"llm": llm})
    else:

        async def wait(*, rollout: agl.AttemptedRollout) -> None:
            await wait_for_beat(rollout)

        setattr(hook, slow, wait)

    waited: list[str] = []
    limit = agl.RolloutConfig(unresponsive_seconds=2.0)
    (rollout,) = await run_all(succeeds, memory_store, ["x"], config=limit, hooks=[hook])
    assert waited == [slow]
    assert (rollout.status, rollout.attempt.status) == ("succeeded", "succeeded")


async def step(agent: Any, store: agl.LightningStore, task: Any = "x", **options: Any) -> Any:
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agl.rollout(agent), store=store):
        return await runner.step(task, **options)


async def test_step_returns_the_rollout_as_it_ended(memory_store):
    async def agent(task, prompt_template: agl.PromptTemplate, rollout: agl.Rollout) -> float:
        assert rollout.mode == "val"
        return float(prompt_template.format(x=task))

    prompt = agl.PromptTemplate(template="{x}.5", engine="f-string")
    rollout = await step(agent, memory_store, 3, resources={"main_prompt": prompt}, mode="val")
    assert (rollout.status, rollout.input, rollout.mode) == ("succeeded", 3, "val")
    assert agl.find_final_reward(await memory_store.query_spans(rollout.rollout_id)) == 3.5
    assert (await memory_store.get_latest_resources()).resources_id == rollout.resources_id


@pytest.mark.parametrize("is_async", [True, False])
async def test_step_raises_what_the_agent_raised(memory_store, is_async):
    mine = ValueError("mine")

    def plain(task):
        raise mine

    async def coroutine(task):
        raise mine

    with pytest.raises(ValueError, match="mine") as caught:
        await step(coroutine if is_async else plain, memory_store)
    assert caught.value is mine
    assert [one.status for one in await memory_store.query_rollouts()] == ["failed"]


async def test_step_raises_wrong_results_and_cancellation(memory_store):
    async def agent(task):
        if task == "long":
            await asyncio.sleep(30)
        return "text"

    with pytest.raises(AgentResultError):
        await step(agent, memory_store, "short")
    event = agl.ThreadingEvent()
    asyncio.get_running_loop().call_later(0.2, event.set)
    with pytest.raises(RolloutCancelledError):
        await step(agent, memory_store, "long", event=event)


async def test_step_runs_a_coroutine_on_the_loop_of_the_caller(memory_store):
    mine = asyncio.get_running_loop()

    async def agent(task):
        assert asyncio.get_running_loop() is mine

    assert (await step(agent, memory_store)).status == "succeeded"
