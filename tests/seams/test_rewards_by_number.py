"""Rewards find their calls by the numbers that the store gives, on whichever clocks they came."""

import asyncio
import contextlib
import json
import logging
import threading
import time

import pytest
from tests.models import entry

import agl
from agl.tracer import buffer
from agl_http.server import ServerThread
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_testing.echo_llm import EchoLLM, RawReply

from .collecting import collect, rows_of, settled

openai = pytest.importorskip("openai")
client = pytest.importorskip("agl_gateway.client")
agl_adapters = pytest.importorskip("agl_adapters")

MESSAGE = {"role": "user", "content": "hello"}


@agl.rollout
async def rewarding(task: str, llm: agl.LLM) -> None:
    """Three calls, each with a reward right after its answer."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
        for number in range(3):
            messages = [{"role": "user", "content": f"turn {number}"}]
            await client.chat.completions.create(model=llm.model, messages=messages)
            agl.emit_reward(number + 1.0)


@agl.rollout
def rewarding_in_a_thread(task: str, llm: agl.LLM) -> None:
    with openai.OpenAI(base_url=llm.endpoint, api_key="x") as client:
        for number in range(3):
            messages = [{"role": "user", "content": f"turn {number}"}]
            client.chat.completions.create(model=llm.model, messages=messages)
            agl.emit_reward(number + 1.0)


async def rewarded(agent, *given, credit="per_call", **options):
    """What a gateway before a model that answers at once, or as given, made of an agent."""
    with EchoLLM(*given) as llm:
        gateway = agl.LLMProxy(model_list=[entry("policy", llm.url)], num_retries=0)
        adapter = agl_adapters.TraceToRows(credit=credit)
        return settled(await collect(agent, gateway, adapter=adapter, **options))


@pytest.mark.parametrize("agent", [rewarding, rewarding_in_a_thread])
@pytest.mark.parametrize("skew", [0.0, -5.0, 5.0])
async def test_each_reward_goes_to_the_call_that_it_follows(agent, skew, monkeypatch) -> None:
    agl_gateway = pytest.importorskip("agl_gateway.records")

    class Clock:
        """The gateway's machine."""

        perf_counter = staticmethod(time.perf_counter)

        @staticmethod
        def time() -> float:
            return time.time() + skew

    monkeypatch.setattr(agl_gateway, "time", Clock)
    collected = await rewarded(agent)
    given = {
        call_id: credit.reward
        for row in rows_of(collected)
        for call_id, credit in zip(row.call_ids, row.credits, strict=True)
    }
    assert list(given.values()) == [1.0, 2.0, 3.0]
    assert collected.ledger.summary()["rewards"] == {"total": 3, "used": 3, "excluded": {}}


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_reward_before_the_only_call_is_of_no_call(at_once, monkeypatch) -> None:
    """Also if the attempt ends before a write of its spans is due."""
    monkeypatch.setattr(buffer, "BATCH_SECONDS", 0.0 if at_once else 60.0)

    @agl.rollout
    async def early(task: str, llm: agl.LLM) -> None:
        agl.emit_reward(5.0)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
            await client.chat.completions.create(model=llm.model, messages=[MESSAGE])

    collected = await rewarded(early)
    assert collected.ledger.reasons("reward") == {"reward_before_call": 1}


async def test_where_the_order_is_not_known_no_call_gets_the_reward(monkeypatch) -> None:
    app, errors = pytest.importorskip("agl_gateway.app"), pytest.importorskip("agl_gateway.errors")

    async def refuse(self, request):
        raise errors.RefusedError(500, "out of order")

    monkeypatch.setattr(app.GatewayApp, "_flush", refuse)
    collected = await rewarded(rewarding)
    assert collected.ledger.reasons() == {"unordered_reward": 3}
    assert collected.ledger.reasons("reward") == {"unordered_reward": 3}


@pytest.mark.parametrize(
    ("ahead", "then", "before"),
    [(0, 0, 1), (1000, 1000, 1), (-1000, -1000, 1), (1000, -3000, 1), (0, 0, 0)],
)
async def test_a_runner_tells_a_gateway_when_spans_ended_by_its_clock(ahead, then, before) -> None:
    """Also if the gateway comes back on another host, or says that a call is before every span."""
    asked: list[dict] = []

    async def gateway_app(scope, receive, send):
        message = await receive()
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        asked.append(json.loads(message["body"]))
        clock = time.monotonic() + (ahead if len(asked) < 4 else then)
        said = {"clock": clock, "before": before, "in_order": True}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        return await send({"type": "http.response.body", "body": json.dumps(said).encode()})

    server = ServerThread(gateway_app)
    server.start()
    store, gateways = agl.InMemoryLightningStore(), client.HttpGatewayClient()
    rollout = await store.start_rollout("task")
    gateways.note(rollout, {"llm": agl.ProxyLLM(endpoint=f"{server.url}/v1", model="m")})
    begin = time.monotonic()
    span = agl.Span.from_attributes(attributes={}, end_time=time.time())
    end = time.monotonic()
    assert await gateways.wait_for_earlier_calls(rollout, [span]) == (1, before == 1)
    server.stop()
    told = asked[-1]
    asks = [True, True, True, False]
    assert [one["ended"] == [] for one in asked] == (asks if then == ahead else asks * 2)
    (ended,) = told["ended"]
    # A float of unix seconds is good for a microsecond.
    assert begin + then - 1e-5 <= ended <= end + then + told["slack"] + 1e-5


async def test_nobody_waits_for_a_store_that_is_slow(run_all, caplog) -> None:
    done = threading.Event()

    class Slow(agl.InMemoryLightningStore):
        async def add_many_spans(self, spans):
            await asyncio.to_thread(done.wait)  # until the agent is at its end
            return await super().add_many_spans(spans)

    def emit_many() -> None:
        for _ in range(200):  # more than one write
            agl.emit_reward(1.0)

    @agl.rollout
    async def on_the_loop(task: str) -> None:
        emit_many()
        await asyncio.to_thread(emit_many)
        done.set()

    store = Slow()
    with caplog.at_level(logging.WARNING):
        (rollout,) = await run_all(on_the_loop, store, ["task"])
    spans = await store.query_spans(rollout.rollout_id)
    assert (rollout.status, [span.sequence_id for span in spans]) == ("succeeded", [*range(1, 401)])
    assert caplog.records == []


def two_steps(broken: list[bool]) -> agl.LitAgent:
    """The second and third of three rollouts do equally well; a server fails the third once."""
    begun: list[str] = []

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> None:
        begun.append(task)
        broken[0] = len(begun) == 3
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=0) as client:
            for words in ("first step", "second step"):
                question = [{"role": "user", "content": words}]
                for _ in range(2):
                    with contextlib.suppress(openai.InternalServerError):
                        await client.chat.completions.create(model=llm.model, messages=question)
                        break
        agl.emit_reward(float(len(begun) > 1))

    return agent


@pytest.mark.parametrize("credit", ["discounted", "stepwise"])
async def test_a_call_that_was_asked_again_is_no_step(credit: str) -> None:
    broken = [False]

    def reply(request: dict) -> RawReply | str:
        failed, broken[0] = broken[0], False
        return RawReply(503, b'{"error": {"message": "out of order"}}') if failed else "yes"

    rule = {"type": credit, "gamma": 0.5}
    collected = await rewarded(two_steps(broken), reply, credit=rule, copies=3)
    assert collected.ledger.reasons() == {"infrastructure": 1}
    _, second, third = (
        [credit for row in one.rows for credit in row.credits] for one in collected.ended
    )
    steps = [[(c.group, c.step and c.step.group, c.reward) for c in two] for two in (second, third)]
    assert steps[0] == steps[1]
    advantages = sibling_advantages([one.rows for one in collected.ended])
    values = [[each.value for row in one for each in row] for one in advantages]
    assert values[1] == values[2]
