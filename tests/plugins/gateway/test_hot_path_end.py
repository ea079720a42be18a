"""The end of an attempt: its calls are stored before its status is, and it makes no more."""

import asyncio
import json

import aiohttp
import pytest

import agl
from agl.errors import GatewayError
from agl.runner import LitAgentRunner
from agl.semconv import ModelCallAttributes as Key
from agl.store.memory import InMemoryLightningStore
from agl.types import ProxyLLM, Rollout
from agl_gateway import LLMProxy
from agl_sqlite import SqliteLightningStore
from agl_testing.echo_llm import EchoLLM


def models(url: str) -> list[dict]:
    params = {"model": "hosted_vllm/echo", "api_base": url}
    return [{"model_name": "echo", "litellm_params": params}]


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


async def post(url: str, **fields: object) -> tuple[int, dict]:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello you"}], **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", json=body) as response,
    ):
        return response.status, json.loads(await response.read())


@agl.rollout
async def two_calls(task: str, llm: ProxyLLM, rollout: Rollout) -> float:
    url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    for _ in range(2):
        assert (await post(url))[0] == 200
    return 1.0


async def run_agent(agent, store, proxy: LLMProxy) -> Rollout:
    runner = LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        return await runner.step("task", resources={"main_llm": proxy.as_resource()})


async def test_calls_are_in_a_slow_store_before_the_attempt_has_its_final_status(
    echo_llm: EchoLLM,
) -> None:
    store = OrderOfWrites()
    proxy = LLMProxy(open=True, model_list=models(echo_llm.url), store=store)
    await proxy.start()
    rollout = await run_agent(two_calls, store, proxy)
    await proxy.stop()
    assert rollout.status == "succeeded"
    assert [name for name in store.order if name in ("openai.chat.completion", "end")] == [
        "openai.chat.completion",
        "openai.chat.completion",
        "end",
    ]
    await store.close()


async def test_calls_are_in_an_sqlite_file_when_the_rollout_has_ended(
    echo_llm: EchoLLM, tmp_path
) -> None:
    store = SqliteLightningStore(tmp_path / "store.db")
    proxy = LLMProxy(open=True, model_list=models(echo_llm.url), store=store)
    await proxy.start()
    rollout = await run_agent(two_calls, store, proxy)
    spans = await store.query_spans(rollout.rollout_id, name="openai.chat.completion")
    assert len(list(spans)) == 2
    await proxy.stop()
    await store.close()


async def test_the_agents_left_over_call_is_broken_off_and_recorded(bench, held) -> None:
    bench.llm.reply = held

    @agl.rollout
    async def impatient(task: str, llm: ProxyLLM, rollout: Rollout) -> float:
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        left_over.append(asyncio.create_task(post(url)))
        await held.asked()
        return 1.0

    left_over: list[asyncio.Task] = []
    rollout = await run_agent(impatient, bench.store, bench.proxy)
    spans = await bench.store.query_spans(rollout.rollout_id, name="openai.chat.completion")
    (span,) = spans
    assert "takes no more calls" in span.attributes[Key.ERROR]
    (status, body) = await left_over[0]
    assert status == 410
    assert body["error"]["code"] == "attempt_ended"


async def test_a_gateway_that_is_gone_fails_the_attempt_and_does_not_hold_its_end(
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
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
async def test_an_attempt_that_the_store_has_ended_takes_no_calls(bench, status: str) -> None:
    attempt = bench.rollout.attempt
    await bench.store.update_attempt(attempt.rollout_id, attempt.attempt_id, status=status)
    got, body = await bench.post(bench.ask())
    assert got == 410
    assert f"its status is '{status}'" in json.loads(body)["error"]["message"]
    assert bench.llm.requests == []


async def test_an_attempt_that_ends_between_calls_is_noticed_soon(
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_gateway.attempts.LOOK_AGAIN_SECONDS", 0.05)
    attempt = bench.rollout.attempt
    assert (await bench.post(bench.ask()))[0] == 200
    await bench.store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="failed")
    await asyncio.sleep(0.1)
    assert (await bench.post(bench.ask()))[0] == 410
    assert (await bench.post(bench.ask()))[0] == 410


async def test_many_calls_of_an_attempt_look_it_up_once(bench) -> None:
    lookups = 0
    query = bench.store.query_attempts

    async def counted(*args, **options):
        nonlocal lookups
        lookups += 1
        return await query(*args, **options)

    bench.store.query_attempts = counted
    for _ in range(5):
        assert (await bench.post(bench.ask()))[0] == 200
    assert lookups == 1


async def public(bench) -> LLMProxy:
    proxy = LLMProxy(model_list=bench.models(bench.llm.url), store=bench.store, host="0.0.0.0")
    await proxy.start()
    return proxy


async def test_the_address_of_an_attempt_opens_that_attempt_only(bench) -> None:
    proxy = await public(bench)
    own = proxy.as_resource(bench.rollout.rollout_id, bench.rollout.attempt.attempt_id)
    other = await bench.store.start_rollout(input="task")
    base = f"http://127.0.0.1:{proxy.port}"
    path = own.endpoint.split("/", 3)[3]
    assert own.api_key not in (None, proxy.api_key)
    assert (await bench.post(bench.ask(), f"{base}/{path}"))[0] == 200
    # The same token at another attempt's address, in the address and as the key:
    stolen = path.replace(bench.rollout.rollout_id, other.rollout_id).replace(
        bench.rollout.attempt.attempt_id, other.attempt.attempt_id
    )
    status, body = await bench.post(bench.ask(), f"{base}/{stolen}")
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_token")
    plain = f"{base}/rollout/{other.rollout_id}/attempt/{other.attempt.attempt_id}/v1"
    key = {"authorization": f"Bearer {own.api_key}"}
    assert (await bench.post(bench.ask(), plain, **key))[0] == 401
    assert (await bench.post(bench.ask(), f"{base}/v1", **key))[0] == 401
    mine = f"{base}/rollout/{bench.rollout.rollout_id}/attempt"
    mine = f"{mine}/{bench.rollout.attempt.attempt_id}/v1"
    assert (await bench.post(bench.ask(), mine, **key))[0] == 200
    assert (await bench.post(bench.ask(), mine))[0] == 401
    await proxy.stop()


async def test_a_proxy_with_the_same_key_takes_the_old_addresses(bench) -> None:
    addresses = set()
    for _ in range(2):
        proxy = LLMProxy(port=4000, store=bench.store, api_key="key-of-two-proxies-5817")
        proxy.update_model_list(bench.models(bench.llm.url))
        addresses.add(proxy.as_resource().get_base_url("ro-1", "at-1"))
    assert len(addresses) == 1


async def test_calls_are_recorded_in_a_store_behind_a_server(echo_llm: EchoLLM) -> None:
    store = InMemoryLightningStore()
    server = agl.LightningStoreServer(store, "127.0.0.1", 0)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    proxy = LLMProxy(open=True, model_list=models(echo_llm.url), store=client)
    await proxy.start()
    rollout = await store.start_rollout(input="task")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    url = proxy.as_resource(*ids).endpoint
    for _ in range(2):
        assert (await post(url))[0] == 200
    await proxy.flush()
    spans = list(await store.query_spans(rollout.rollout_id))
    await proxy.stop()
    await client.close()
    await server.close()
    assert [span.sequence_id for span in spans] == [1, 2]
    assert (
        spans[0].attributes[Key.RESPONSE_TOKEN_IDS] == spans[1].attributes[Key.RESPONSE_TOKEN_IDS]
    )
