"""The end of an attempt: its calls are stored before its status is, and it makes no more."""

import asyncio
from unittest import mock

import pytest

import agl
from agl.runner import LitAgentRunner
from agl.semconv import ModelCallAttributes as Key
from agl.store.memory import InMemoryLightningStore
from agl.types import ProxyLLM, Rollout
from agl_gateway import LLMProxy

from .conftest import Bench, models, stream_of


class OrderOfWrites(InMemoryLightningStore):
    """Slow to take model calls; notes the order in which things are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def turn(self, spans=(), *, finish=None, **options):
        if spans and finish is None:
            await asyncio.sleep(0.3)
        done = await super().turn(spans, finish=finish, **options)
        self.order += [span.name for span in spans] + (["end"] if finish else [])
        return done


@agl.rollout
async def two_calls(task: str, llm: ProxyLLM, rollout: Rollout) -> float:
    url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    for _ in range(2):
        assert (await stream_of(f"{url}/chat/completions", Bench.ask()))[0] == 200
    return 1.0


async def run_agent(agent, store, proxy: LLMProxy) -> Rollout:
    runner = LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        return await runner.step("task", resources={"main_llm": proxy.as_resource()})


async def test_calls_are_in_a_slow_store_before_the_attempt_has_its_final_status(started):
    store = OrderOfWrites()
    bench = await started(store=store)
    rollout = await run_agent(two_calls, store, bench.proxy)
    assert rollout.status == "succeeded"
    call = "openai.chat.completion"
    assert [name for name in store.order if name in (call, "end")] == [call, call, "end"]


async def test_the_agents_left_over_call_is_broken_off_and_recorded(bench, held):
    bench.llm.reply = held

    @agl.rollout
    async def impatient(task: str, llm: ProxyLLM, rollout: Rollout) -> float:
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        left_over.append(asyncio.create_task(bench.refused(bench.ask(), url)))
        await held.asked()
        return 1.0

    left_over: list[asyncio.Task] = []
    rollout = await run_agent(impatient, bench.store, bench.proxy)
    spans = await bench.store.query_spans(rollout.rollout_id, name="openai.chat.completion")
    (span,) = spans
    assert "takes no more calls" in span.attributes[Key.ERROR]
    (status, error) = await left_over[0]
    assert status == 410
    assert error["code"] == "attempt_ended"


@pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
async def test_an_attempt_that_the_store_has_ended_takes_no_calls(bench, status):
    await bench.store.update_attempt(*bench.ids, status=status)
    got, error = await bench.refused(bench.ask())
    assert got == 410
    assert f"its status is '{status}'" in error["message"]
    assert bench.llm.requests == []


async def test_an_attempt_that_ends_between_calls_is_noticed_soon(bench, monkeypatch):
    monkeypatch.setattr("agl_gateway.attempts.LOOK_AGAIN_SECONDS", 0.05)
    assert (await bench.post(bench.ask()))[0] == 200
    await bench.store.update_attempt(*bench.ids, status="failed")
    await asyncio.sleep(0.1)
    assert [(await bench.post(bench.ask()))[0] for _ in range(2)] == [410, 410]


async def test_many_calls_of_an_attempt_look_it_up_once(bench):
    bench.store.query_attempts = mock.AsyncMock(wraps=bench.store.query_attempts)
    for _ in range(5):
        assert (await bench.post(bench.ask()))[0] == 200
    assert bench.store.query_attempts.await_count == 1


async def test_a_proxy_with_the_same_key_takes_the_old_addresses(bench):
    given = {"model_list": models(bench.llm.url), "store": bench.store, "api_key": "key-of-two-581"}
    proxies = [LLMProxy(port=4000, **given) for _ in range(2)]
    assert len({one.as_resource().get_base_url("ro-1", "at-1") for one in proxies}) == 1
