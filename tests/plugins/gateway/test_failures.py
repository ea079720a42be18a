"""What goes wrong reaches the agent as OpenAI's errors do, and the record all the same."""

import asyncio
import json

import aiohttp
import pytest
from tests.waiting import free_port

import agl
from agl.errors import AlgorithmError
from agl.semconv import ModelCallAttributes as Key
from agl.types import ProxyLLM
from agl_gateway import LLMProxy
from agl_testing.echo_llm import RawReply

from .conftest import models


def raw(status: int, body: bytes, content_type: str = "application/json"):
    return lambda request: RawReply(status, body, content_type)


BAD_GATEWAY = b"<html>Bad gateway</html>"


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    ("reply", "status", "kind", "message"),
    [
        (raw(400, b'{"error":{"message":"too long"}}'), 400, "invalid_request_error", "too long"),
        (raw(429, b'{"error":{"message":"slow"}}'), 429, "rate_limit_error", "slow"),
        (raw(500, b'{"error":{"message":"out of memory"}}'), 500, "api_error", "out of memory"),
        (raw(503, BAD_GATEWAY, "text/html"), 503, "overloaded_error", "Bad gateway"),
        (raw(200, b"<html>login</html>", "text/html"), 502, "api_error", "login"),
        (raw(200, b""), 502, "api_error", "no answer to this call"),
        (raw(200, b'{"choices": ['), 502, "api_error", "no answer to this call"),
        (raw(200, b'{"choices": null}'), 502, "api_error", "no answer to this call"),
    ],
    ids=["400", "429", "500", "HTML 503", "HTML 200", "nothing", "broken JSON", "no choices"],
)
async def test_a_failing_backend_is_passed_on(bench, path, reply, status, kind, message):
    bench.llm.reply = reply
    asked = {"model": "echo", "input": "hello"} if path == "responses" else bench.ask(max_tokens=9)
    got, error = await bench.refused(asked, path=path)
    assert got == status
    assert message in error["message"]
    assert path != "messages" or error["type"] == kind
    span = await bench.span()
    assert message in span.attributes[Key.ERROR]
    assert span.status.status_code == "ERROR"
    assert span.attributes["http.response.status_code"] == status
    said = json.loads(span.attributes[Key.INPUT_MESSAGES])
    assert [one["role"] for one in said] == ["user"]
    assert path != "chat/completions" or said == asked["messages"]


async def test_the_key_that_a_backend_repeats_is_not_recorded(bench, started):
    key = "pk-8f3a6c1e5b7d"
    (entry,) = models(bench.llm.url)
    entry["litellm_params"]["api_key"] = key
    other = await started(model_list=[entry])
    other.llm.reply = raw(401, b'{"error":{"message":"no such key: pk-8f3a6c1e5b7d"}}')
    assert (await other.post(other.ask()))[0] == 401
    span = await other.span()
    assert '"no such key: ***"' in span.attributes[Key.ERROR]
    assert key not in span.model_dump_json()


OF_MCP = b'{"model": "echo", "messages": [], "max_tokens": 1, "mcp_servers": [{"name": "x"}]}'
BROKEN = b'{"model": "echo",'
GPT = b'{"model": "gpt", "messages": [], "max_tokens": 1, "input": "hello"}'


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat/completions", BROKEN, 400, "not valid JSON"),
        ("chat/completions", b"[1]", 400, "expected a JSON object"),
        ("chat/completions", b'{"model": "echo"}', 400, "no 'messages'"),
        ("chat/completions", b'{"messages": []}', 400, "no 'model'; served models: echo"),
        ("chat/completions", GPT, 404, "unknown model 'gpt'; served models: echo"),
        ("completions", b'{"model": "echo"}', 400, "no 'prompt'"),
        ("messages", BROKEN, 400, "not valid JSON"),
        ("messages", b"[]", 400, "expected an object"),
        ("messages", OF_MCP, 400, "mcp_servers: offer the tools"),
        ("messages", GPT.replace(b', "input": "hello"', b""), 404, "served models: echo"),
        ("responses", BROKEN, 400, "not valid JSON"),
        ("responses", b'{"previous_response_id": "resp_1"}', 400, "previous_response_id"),
        ("responses", b'{"model": "gpt", "input": "hello"}', 404, "served models: echo"),
    ],
)
async def test_a_wrong_request_is_refused_by_name_and_recorded(bench, path, body, status, message):
    got, error = await bench.refused(body, path=path)
    assert got == status
    assert message in error["message"]
    is_404_of_anthropic = path == "messages" and status == 404
    assert error["type"] == ("not_found_error" if is_404_of_anthropic else "invalid_request_error")
    assert message in (await bench.attributes())[Key.ERROR]
    assert bench.llm.requests == []


DEEP = b"[" * 100_000


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": "echo", "messages": ' + DEEP, "not valid JSON"),
        (b'{"model": 1e999, "prompt": "hello", "messages": [], "input": "hello"}', "out of range"),
        (b'{"model": "echo", "prompt": "hello", "messages": [], "temperature": 1e999}', ""),
    ],
)
async def test_what_cannot_be_read_is_the_fault_of_who_sent_it(bench, path, body, message):
    bench.serve(forced_parameters={"all": {"temperature": 1.0}})
    status, error = await bench.refused(body, path=path)
    assert status == 400
    assert message in error["message"]
    assert (await bench.span()).attributes["http.response.status_code"] == 400
    assert bench.llm.requests == []


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (raw(200, b'{"choices": ' + DEEP), 502),
        (raw(200, b'data: {"choices": ' + DEEP + b"\n\n", "text/event-stream"), 200),
        (raw(400, b'{"error": ' + DEEP), 400),
    ],
    ids=["whole", "stream", "error"],
)
async def test_very_many_brackets_of_a_backend_are_no_answer(bench, path, reply, status):
    bench.llm.reply = reply
    asked = {**bench.ask(stream=status == 200), "max_tokens": 3}
    got, answer = await bench.post(asked, path=path)
    assert got == status
    assert b"error" in answer
    assert b"the gateway failed" not in answer
    assert (await bench.span()).attributes[Key.ERROR]


async def test_a_body_over_the_limit_is_refused(started):
    bench = await started(max_body_bytes=100)
    status, error = await bench.refused(bench.ask("x" * 100))
    assert status == 413
    assert "larger than 100 bytes" in error["message"]


async def test_a_backend_that_is_down_is_502_after_the_retries(started):
    bench = await started(model_list=models(f"http://127.0.0.1:{free_port()}/v1"), num_retries=2)
    status, error = await bench.refused(bench.ask())
    assert status == 502
    assert "cannot be reached after 3 tries" in error["message"]
    assert "cannot be reached after 3 tries" in (await bench.attributes())[Key.ERROR]


async def test_a_client_that_hangs_up_mid_stream_is_recorded_with_what_had_come(bench):
    bench.llm.latency_seconds = 0.05
    await bench.leave()
    attributes = await bench.attributes()
    assert "client closed the connection" in attributes[Key.ERROR]
    assert len(attributes.get(Key.RESPONSE_TOKEN_IDS, [])) < 40
    assert attributes[Key.RESPONSE_ID] == "chatcmpl-1"


@pytest.mark.parametrize(("silence", "kind"), [(60.0, "request"), (0.0, "infrastructure")])
async def test_who_leaves_a_stream_that_stands_still_has_lost_its_answer(
    bench, monkeypatch, silence, kind
):
    monkeypatch.setattr("agl_gateway.records.SILENCE_SECONDS", silence)
    bench.llm.latency_seconds = 0.05
    await bench.leave()
    assert (await bench.attributes())[Key.ERROR_KIND] == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "request"), (422, "request"), *((s, "infrastructure") for s in (402, 404, 405, 302))],
)
async def test_whose_fault_a_status_is(bench, status, kind):
    bench.llm.reply = raw(status, b'{"error":{"message":"no"}}')
    assert (await bench.post(bench.ask()))[0] == status
    assert (await bench.attributes())[Key.ERROR_KIND] == kind


async def test_a_good_answer_with_another_status_than_200_is_one(bench):
    body = b'{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'
    bench.llm.reply = raw(201, body)
    assert await bench.post(bench.ask()) == (200, body)
    assert Key.ERROR not in await bench.attributes()


def mistyped(**choice: object) -> bytes:
    choices = [{"index": 0, "delta": {"content": "a"}}, {"index": 0, "delta": {}, **choice}]
    chunks = [json.dumps({"id": "c", "choices": [one]}).encode() for one in choices]
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"id":"c","choices":["x"]}\n\n',
        b'data: {"id":"c","choices":5}\n\n',
        mistyped(delta={"tool_calls": 3}),
        mistyped(delta={"tool_calls": ["x"]}),
        mistyped(delta={"tool_calls": [{"index": 0, "id": "i", "function": {"name": 3}}]}),
        mistyped(delta={"content": ["a"]}) + mistyped(),
        mistyped(text=5),
    ],
)
async def test_a_stream_of_wrong_types_ends_as_one_that_breaks(bench, stream, path):
    bench.llm.reply = raw(200, stream, "text/event-stream")
    asked = {"model": "echo", "input": "hello", "stream": True}
    if path != "responses":
        asked = bench.ask(stream=True, max_tokens=9)
    status, body = await bench.post(asked, path=path)
    assert status == 200
    assert b"error" in body.strip().split(b"\n\n")[-1]
    span = await bench.span()
    assert span.attributes[Key.ERROR].startswith("the backend sent an event")
    assert span.attributes[Key.ERROR_KIND] == "infrastructure"


@pytest.mark.parametrize("status", [204, 205, 304])
async def test_an_answer_that_can_have_no_body_is_an_error_of_the_backend(bench, status):
    replies = iter([RawReply(status, b""), "fine"])
    bench.llm.reply = lambda request: next(replies)
    async with aiohttp.ClientSession() as session:
        for expected in (502, 200):  # on one connection
            url = f"{bench.url}/chat/completions"
            async with session.post(url, json=bench.ask()) as response:
                assert response.status == expected
                await response.json()


async def test_an_answer_without_a_choice_is_recorded_as_an_error(bench):
    bench.llm.reply = raw(200, b'{"id": "c", "choices": []}')
    assert (await bench.post(bench.ask()))[0] == 200
    assert (await bench.span()).attributes[Key.ERROR] == "the backend's answer has no choice"


async def test_less_than_no_tokens_count_as_none_told(bench):
    message = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": -5, "completion_tokens": -7}
    usage |= {"prompt_tokens_details": {"cached_tokens": -1}}
    answer = {"id": "c", "choices": [{**message, "token_ids": [1, 2]}], "usage": usage}
    bench.llm.reply = raw(200, json.dumps(answer).encode())
    await bench.post(bench.ask())
    attributes = (await bench.span()).attributes
    assert attributes[Key.OUTPUT_TOKENS] == 2
    assert not {Key.INPUT_TOKENS, Key.CACHED_INPUT_TOKENS} & attributes.keys()


async def test_half_an_attribution_is_refused(bench):
    url = bench.proxy.as_resource().get_base_url()
    status, error = await bench.refused(bench.ask(), url, **{"x-rollout-id": "ro-1"})
    assert status == 400
    assert "x-attempt-id" in error["message"]


async def test_an_unknown_address_and_a_wrong_method_are_named(bench):
    base = bench.url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{base}/v1/embeddings", json={}) as response:
            assert response.status == 404
            assert "/v1/chat/completions" in (await response.json())["error"]["message"]
        async with session.get(f"{base}/v1/chat/completions") as response:
            assert response.status == 405


async def test_a_call_of_an_unknown_attempt_is_refused_and_costs_no_other_record(bench):
    llm = ProxyLLM(endpoint=f"{bench.proxy.address.url()}/v1", model="echo")
    (unknown, body), (known, _) = await asyncio.gather(
        bench.post(bench.ask("lost"), llm.get_base_url("ro-x", "at-x")),
        bench.post(bench.ask("kept")),
    )
    assert (unknown, known) == (404, 200)
    assert "unknown attempt 'at-x' of rollout 'ro-x'" in json.loads(body)["error"]["message"]
    assert json.loads((await bench.span()).attributes[Key.INPUT_MESSAGES])[0]["content"] == "kept"


def test_run_whose_gateway_fails_to_stop_has_its_on_run_end_all_the_same(echo_llm):
    class FailsToStop(LLMProxy):
        async def stop(self) -> None:
            await super().stop()
            raise OSError("no space left")

    told = []

    class Watch:
        def on_run_start(self) -> None:
            told.append("start")

        def on_run_end(self, error) -> None:
            told.append(error)

    gateway = FailsToStop(free_port(), models(echo_llm.url))
    trainer = agl.Trainer(algorithm="baseline", strategy="shm", llm_proxy=gateway, hooks=[Watch()])
    with pytest.raises(AlgorithmError, match="no space left"):
        trainer.fit(agl.rollout(lambda task: 1.0), ["task"])
    assert told == ["start", None]
