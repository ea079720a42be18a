"""``previous_response_id``: a conversation that the gateway keeps while its attempt runs."""

import json

import pytest

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_adapters import TraceToRows
from agl_gateway import response_history
from agl_gateway.errors import RefusedError
from agl_gateway.response_history import ResponseHistory as History
from agl_testing.echo_llm import RawReply

from .conftest import answering

openai = pytest.importorskip("openai")

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def look(request: dict) -> dict | str:
    if request["messages"][-1]["role"] == "tool":
        return "the hall"
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]}


async def test_calls_that_go_on_from_one_another_are_one_row(bench, client):
    bench.llm.reply = look
    goes_on = {"model": "echo", "tools": [TOOL], "instructions": "be brief"}
    first = await client.responses.create(**goes_on, input="where?")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "hall"}
    asked = {**goes_on, "previous_response_id": first.id, "input": [output]}
    async with client.responses.stream(**asked) as stream:
        second = await stream.get_final_response()
    assert second.previous_response_id == first.id
    bench.llm.reply = lambda request: "yes"
    await client.responses.create(**goes_on, previous_response_id=second.id, input="sure?")
    roles = [message["role"] for message in bench.llm.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert bench.llm.requests[-1]["messages"][2]["reasoning"] == "hm"
    ids = dict(zip(("rollout_id", "attempt_id"), bench.ids, strict=True))
    async with agl.OtelTracer().trace_context(store=bench.store, **ids):
        agl.emit_reward(1.0)
    (row,) = TraceToRows().adapt(await bench.spans()).rows
    assert len(row.call_ids) == 3


async def test_a_conversation_may_branch(bench, client):
    first = await client.responses.create(model="echo", input="one")
    for word in ("two", "three"):
        again = {"previous_response_id": first.id, "input": word}
        assert (await client.responses.create(model="echo", **again)).output_text == word
    said = [message["content"] for message in bench.llm.requests[-1]["messages"]]
    assert said == ["one", "one", "three"]


async def not_found(client, response_id: str) -> str:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="echo", input="x", previous_response_id=response_id)
    assert refused.value.code == "previous_response_not_found"
    assert "send all items of the conversation in 'input'" in refused.value.message
    return refused.value.message


async def test_one_that_was_not_to_be_stored_is_not_known(bench, client):
    first = await client.responses.create(model="echo", input="one", store=False)
    assert first.store is False
    assert "'store': false" in await not_found(client, first.id)
    assert "previous_response_id" in (await bench.spans())[-1].attributes[Key.ERROR]


async def test_one_of_another_attempt_is_not_known(bench, client):
    first = await client.responses.create(model="echo", input="one")
    other = await bench.other(bench.proxy)
    async with openai.AsyncOpenAI(base_url=other.url, api_key="none") as stranger:
        assert other.rollout.attempt.attempt_id in await not_found(stranger, first.id)


async def test_one_from_before_a_restart_is_not_known(bench, client):
    first = await client.responses.create(model="echo", input="one")
    await bench.proxy.stop()
    await bench.proxy.start()
    said = await not_found(client, first.id)
    assert "until their attempt ends or the gateway is restarted" in said


async def test_an_answer_that_failed_is_not_kept(bench, client):
    stream = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    bench.llm.reply = lambda request: RawReply(200, stream, "text/event-stream")
    await bench.post({"model": "echo", "input": "x", "stream": True}, path="responses")
    await not_found(client, "c")


async def test_two_answers_with_one_id_are_both_unknown(bench, client):
    bench.llm.reply = answering(finish_reason="stop")
    await client.responses.create(model="echo", input="one")
    await client.responses.create(model="echo", input="two", previous_response_id="c")
    await not_found(client, "c")


async def test_nothing_is_kept_for_calls_of_no_attempt(bench):
    url = f"http://127.0.0.1:{bench.proxy.port}/v1"
    ask = {"model": "echo", "input": "one"}
    status, body = await bench.post(ask, url, "responses")
    assert (status, json.loads(body)["store"]) == (200, False)
    status, body = await bench.post({**ask, "store": True}, url, "responses")
    assert (status, b"store: the gateway keeps responses" in body) == (400, True)


def test_the_oldest_of_an_attempt_go_first(monkeypatch):
    monkeypatch.setattr(response_history, "MAX_BYTES", 3 * (response_history.OVERHEAD + 10))
    responses = History()
    for number in range(4):
        before = str(number - 1) if number == 3 else None
        responses.keep("a", str(number), before, ["12345678"[:6]])
    for gone in ("0", "5"):
        with pytest.raises(RefusedError):
            responses.items("a", gone)
    assert responses.items("a", "1") == ["123456"]
    assert responses.items("a", "3") == ["123456", "123456"]
    for number in (4, 5):  # what "3" goes on from goes, and so nobody can go on from "3"
        responses.keep("a", str(number), None, ["123456"])
    with pytest.raises(RefusedError):
        responses.items("a", "3")


def test_the_attempt_that_is_silent_for_longest_goes_first(monkeypatch):
    monkeypatch.setattr(response_history, "MAX_BYTES_OF_ALL", 2 * (response_history.OVERHEAD + 10))
    responses = History()
    for attempt in ("a", "b"):
        responses.keep(attempt, "r", None, ["123456"])
    responses.items("a", "r")
    responses.keep("c", "r", None, ["123456"])
    with pytest.raises(RefusedError):
        responses.items("b", "r")
    assert responses.items("a", "r") == responses.items("c", "r") == ["123456"]
    responses.forget("a")
    responses.keep("d", "r", None, ["123456"])
    assert responses.items("c", "r") == ["123456"]


async def test_what_an_attempt_has_is_forgotten_when_it_ends(bench, client):
    await client.responses.create(model="echo", input="one")
    attempts = bench.proxy._app._history._attempts
    assert list(attempts) == [bench.rollout.attempt.attempt_id]
    assert (await bench.post({}, path="end"))[0] == 200
    assert not attempts
