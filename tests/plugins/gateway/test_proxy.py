"""Life of the proxy: start, stop, models, attribution, what it refuses."""

import asyncio
import functools
import json
import threading
import time

import pytest
from tests.waiting import until

from agl.errors import ConfigError, StoreUnavailableError
from agl.semconv import ModelCallAttributes as Key
from agl.store.memory import InMemoryLightningStore
from agl_gateway import LLMProxy
from agl_http.server import ServerThread
from agl_testing.echo_llm import EchoLLM

from .conftest import models


async def test_a_port_in_use_is_refused(bench, started):
    with pytest.raises(ConfigError, match=f"port {bench.proxy.port} .*is in use"):
        await started(port=bench.proxy.port)


async def test_it_does_not_start_without_a_store():
    with pytest.raises(ConfigError, match="no store"):
        await LLMProxy().start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": ["opentelemetry"]}, "unknown name 'opentelemetry'"),
        ({"num_retries": -1}, "num_retries must be at least 0; got -1"),
        ({"model_list": [{"model_name": "m"}]}, r"model_list\[0\]"),
        ({"run_budget": {"call": 1}}, "run_budget.call: unknown key. Did you mean 'calls'?"),
        ({"run_budget": {"calls": 0}}, "run_budget.calls: input should be greater than 0; got 0"),
        ({"attempt_budget": {"cost": "x"}}, "attempt_budget.cost: .*; got 'x'"),
        ({"max_pause_seconds": 0}, "max_pause_seconds must be above 0; got 0"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LLMProxy(**arguments)


ENTRY = {"model_name": "m", "litellm_params": {"model": "m", "api_base": "http://a/v1"}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"litellm_params": {"model": "m"}}], "api_base is None"),
        ([{"litellm_params": {"temperature": 1}}], "unknown key 'temperature'"),
        ([{"forced_parameters": {"training": {}}}], "training: input should be 'all', 'train', 'v"),
        ([{"forced_parameters": {"all": {"stream": True}}}], "'stream' cannot be forced"),
        ([{"forced_parameters": 1}], "forced_parameters: expected .*, got 1"),
        ([{"forced_parameters": {"val": 0.0}}], "val: input should be a valid dictionary; got 0.0"),
        ([{"price": {"inputs": 1}}], "price.inputs: unknown key. Did you mean 'input'?"),
        ([{"price": {"input": -1}}], "price.input: input should be greater than or equal to 0"),
        ([{"price": 3}], "price: expected Price . None, got 3"),
        ([{"max_tokens": 0}], "max_tokens: input should be greater than or equal to 1; got 0"),
        ([{"send_seed": "perhaps"}], "send_seed: expected bool, got 'perhaps'"),
        ([{"system_messages": "drop"}], "system_messages: .*'as_is', 'merge', 'as_user' or 'ref"),
        ([{}, {"price": {"input": 1.0}}], r"model_list\[1\].*replicas must agree"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(entries, message):
    with pytest.raises(ConfigError, match=message):
        LLMProxy(open=True, model_list=[{**ENTRY, **one} for one in entries])


def test_a_wrong_entry_shows_no_key():
    with pytest.raises(ConfigError, match=r"got .'litellm_params'.") as refused:
        LLMProxy(open=True, model_list=[{"litellm_params": {"api_key": "0123456789abcdef"}}])
    assert "0123456789abcdef" not in str(refused.value)


async def test_a_new_model_list_holds_for_the_next_request_and_not_for_one_in_flight(bench, held):
    bench.llm.reply = held
    with EchoLLM(lambda request: "from the other") as other:
        first = asyncio.create_task(bench.post(bench.ask("from the first")))
        await held.asked()
        bench.serve(other.url)
        assert b"from the other" in (await bench.post(bench.ask()))[1]
        held.let_go()
        assert b"late" in (await first)[1]


async def test_the_backend_gets_its_key_and_its_name_of_the_model(bench):
    (entry,) = models(bench.llm.url, "policy")
    entry["litellm_params"] |= {"model": "openai/org/model", "api_key": "secret"}
    bench.proxy.update_model_list([entry])
    await bench.post({**bench.ask(), "model": "policy"}, authorization="Bearer of-the-agent")
    about = {"model": "org/model", "return_token_ids": True, "logprobs": True}
    assert about.items() <= bench.llm.requests[0].items()
    assert bench.llm.request_headers[0]["authorization"] == "Bearer secret"


async def test_a_server_of_our_own_is_told_which_calls_are_of_one_attempt(bench):
    other = await bench.other(bench.proxy)
    for one in (bench, other, bench):
        await one.post(one.ask())
    sessions = [headers["x-session-id"] for headers in bench.llm.request_headers]
    assert sessions == [bench.ids[1], other.ids[1], bench.ids[1]]
    assert sessions[0] != sessions[1]


async def test_headers_attribute_a_call_and_a_bare_one_is_not_recorded(bench):
    bare = bench.proxy.as_resource().get_base_url()
    ids = dict(zip(("x-rollout-id", "x-attempt-id"), bench.ids, strict=True))
    assert (await bench.post(bench.ask("bare"), bare))[0] == 200
    assert (await bench.post(bench.ask("ours"), bare, **ids))[0] == 200
    assert (await bench.post(bench.ask("short"), bench.url.removesuffix("/v1")))[0] == 200
    asked = [json.loads(one.attributes[Key.INPUT_MESSAGES]) for one in await bench.spans()]
    assert [messages[0]["content"] for messages in asked] == ["ours", "short"]


async def test_a_traceparent_makes_the_record_a_child_of_the_agents_span(bench):
    trace_id, span_id = "ab" * 16, "cd" * 8
    await bench.post(bench.ask(), traceparent=f"00-{trace_id}-{span_id}-01")
    span = await bench.span()
    assert (span.trace_id, span.parent_id) == (trace_id, span_id)


async def test_a_resource_of_no_model_or_of_half_an_attempt_is_refused(bench):
    proxy = bench.proxy
    with pytest.raises(ConfigError, match="both ids"):
        proxy.as_resource("ro-1")
    with pytest.raises(ConfigError, match="model 'x' is not served; served models: echo"):
        proxy.as_resource(model="x")
    proxy.update_model_list(models(bench.llm.url, "a", "b"))
    with pytest.raises(ConfigError, match="no model was named; served models: a, b"):
        proxy.as_resource()


async def behind(bench, store) -> None:
    """From now on the bench has this store."""
    bench.proxy.set_store(store)
    bench.store, bench.rollout = store, await store.start_rollout(input="task")


class ShakyStore(InMemoryLightningStore):
    """Cannot be reached at first."""

    failures = 2

    async def turn(self, *args, **options):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("connection refused")
        return await super().turn(*args, **options)


async def test_a_store_that_comes_back_gets_every_record(bench):
    await behind(bench, ShakyStore())
    for number in range(3):
        assert (await bench.post(bench.ask(str(number))))[0] == 200
    assert len(await bench.spans()) == 3


@pytest.mark.parametrize(
    ("events", "slack", "before", "in_order", "stored"),
    [
        ("call span", 0, 1, True, 1),
        ("span call", 0, 1, True, 0),
        ("call span span call", 0, 2, True, 1),
        ("call span call span", 0, 1, True, 1),
        ("span call flush", 0, 1, False, 1),  # its number is too high already
        ("call flush span", 0, 1, True, 1),
        ("call span", 60, 1, False, 1),  # it may as well have come before the call
        ("span call", 60, 1, True, 0),
    ],
)
async def test_calls_after_a_span_wait_for_it(bench, events, slack, before, in_order, stored):
    ended = []
    for event in events.split():
        if event == "call":
            assert (await bench.post(bench.ask()))[0] == 200
        elif event == "span":
            ended.append(time.monotonic())
        else:
            await bench.proxy.flush()
    status, body = await bench.post({"ended": ended, "slack": slack}, path="flush")
    said = json.loads(body)
    assert (status, said["before"], said["in_order"]) == (200, before, in_order)
    assert len(await bench.store.query_spans(bench.rollout.rollout_id)) == stored
    assert len(await bench.spans()) == events.count("call")


async def test_a_question_about_spans_that_is_no_json_is_refused(bench):
    assert (await bench.post(b'{"ended": ["now"]}', path="flush"))[0] == 400


async def test_calls_wait_while_the_store_is_too_far_behind(bench, monkeypatch):
    class Slow(InMemoryLightningStore):
        may_write = threading.Event()

        async def turn(self, *args, **options):
            await asyncio.to_thread(self.may_write.wait)
            return await super().turn(*args, **options)

    monkeypatch.setattr("agl_gateway.recorder.MAX_PENDING_BYTES", 4000)
    await behind(bench, store := Slow())
    leaves = {**models(bench.llm.url)[0], "model_name": "leaves"}
    bench.proxy.update_model_list([*models(bench.llm.url), leaves])
    assert (await bench.post(bench.ask("x" * 1000)))[0] == 200
    assert (await bench.post(bench.ask("x" * 3000)))[0] == 200
    third = asyncio.create_task(bench.post(bench.ask("third")))
    await asyncio.sleep(0.2)
    gone = asyncio.create_task(bench.post(bench.ask(model="leaves")))
    await until(lambda: len(bench.proxy._app.recorder._stored._waiters) == 2)
    assert (third.done(), gone.done(), len(bench.llm.requests)) == (False, False, 2)
    bench.serve(bench.llm.url)
    store.may_write.set()
    assert (await third)[0] == 200
    status, body = await gone
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    assert b"left the list of models while the call waited" in body
    assert len(await bench.spans()) == 4


async def in_flight(bench, held, monkeypatch: pytest.MonkeyPatch, **options: float) -> asyncio.Task:
    """A call that a gateway of these options has begun."""
    server = functools.partial(ServerThread, **options)
    monkeypatch.setattr("agl_gateway.proxy.ServerThread", server)
    await bench.proxy.restart()
    bench.llm.reply = held
    call = asyncio.create_task(bench.post(bench.ask()))
    await held.asked()
    return call


async def test_a_call_in_flight_when_the_proxy_stops_is_recorded(bench, held, monkeypatch):
    call = await in_flight(bench, held, monkeypatch, drain_seconds=60)
    stopping = asyncio.create_task(bench.proxy.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    held.let_go()
    await stopping
    assert (await call)[0] == 200
    assert Key.ERROR not in await bench.attributes()


async def test_a_call_that_outlasts_the_stop_is_recorded_as_broken_off(bench, held, monkeypatch):
    call = await in_flight(bench, held, monkeypatch, drain_seconds=0.1)
    await bench.proxy.stop()
    await asyncio.gather(call, return_exceptions=True)
    assert "the gateway stopped" in (await bench.attributes())[Key.ERROR]


async def test_it_runs_beside_another_event_loop(bench):
    # flush() and stop() are called from loops other than the one that started the proxy.
    await bench.post(bench.ask())
    await asyncio.to_thread(asyncio.run, bench.proxy.flush())
    assert len(list(await bench.store.query_spans(bench.rollout.rollout_id))) == 1
    await asyncio.to_thread(asyncio.run, bench.proxy.stop())
