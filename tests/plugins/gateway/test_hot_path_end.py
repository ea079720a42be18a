"""The end of an attempt: its calls are stored before its status is, and it makes no more."""

import asyncio
from unittest import mock

import pytest
from tests.stores import opened

import agl
from agl.errors import GatewayError
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


async def test_calls_are_in_an_sqlite_file_when_the_rollout_has_ended(started, tmp_path):
    async with opened(tmp_path / "store.db") as store:
        bench = await started(store=store)
        rollout = await run_agent(two_calls, store, bench.proxy)
        spans = await store.query_spans(rollout.rollout_id, name="openai.chat.completion")
        await bench.proxy.stop()
    assert len(list(spans)) == 2


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


async def test_a_gateway_that_is_gone_fails_the_attempt_and_holds_no_end(bench, monkeypatch):
    monkeypatch.setattr("agl_gateway.client.RETRY_SECONDS", (0.01,))

    @agl.rollout
    async def stops_it(task: str, llm: ProxyLLM) -> float:
        await bench.proxy.stop()
        return 1.0

    with pytest.raises(GatewayError, match="cannot say that it has recorded all model calls"):
        await run_agent(stops_it, bench.store, bench.proxy)
    (ended,) = await bench.store.query_rollouts(status_in=["failed"])
    assert ended.attempt.error.boundary == "model"


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


async def test_the_address_of_an_attempt_opens_that_attempt_only(started):
    bench = await started(host="0.0.0.0", open=False)
    own = bench.proxy.as_resource(*bench.ids)
    other = await bench.other(bench.proxy)
    base = f"http://127.0.0.1:{bench.proxy.port}"
    path = own.endpoint.split("/", 3)[3]
    assert own.api_key not in (None, bench.proxy.api_key)
    assert (await bench.post(bench.ask(), f"{base}/{path}"))[0] == 200
    # The same token at another attempt's address, in the address and as the key:
    stolen = path.replace(bench.ids[0], other.ids[0]).replace(bench.ids[1], other.ids[1])
    status, error = await bench.refused(bench.ask(), f"{base}/{stolen}")
    assert (status, error["code"]) == (401, "invalid_token")
    key = {"authorization": f"Bearer {own.api_key}"}
    mine, theirs = (f"{base}/rollout/{a}/attempt/{b}/v1" for a, b in (bench.ids, other.ids))
    for url in (theirs, f"{base}/v1"):
        assert (await bench.post(bench.ask(), url, **key))[0] == 401
    assert (await bench.post(bench.ask(), mine, **key))[0] == 200
    assert (await bench.post(bench.ask(), mine))[0] == 401


async def test_a_proxy_with_the_same_key_takes_the_old_addresses(bench):
    given = {"model_list": models(bench.llm.url), "store": bench.store, "api_key": "key-of-two-581"}
    proxies = [LLMProxy(port=4000, **given) for _ in range(2)]
    assert len({one.as_resource().get_base_url("ro-1", "at-1") for one in proxies}) == 1


async def test_calls_are_recorded_in_a_store_behind_a_server(bench, started):
    server = agl.LightningStoreServer(bench.store, "127.0.0.1", 0)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    other = await started(store=client)
    for _ in range(2):
        assert (await other.post(bench.ask()))[0] == 200
    first, second = await other.spans()
    await other.proxy.stop()
    await client.close()
    await server.stop()
    assert (first.sequence_id, second.sequence_id) == (1, 2)
    assert first.attributes[Key.RESPONSE_TOKEN_IDS] == second.attributes[Key.RESPONSE_TOKEN_IDS]
