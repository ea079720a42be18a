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


def raw(status: int, body: bytes, content_type: str = "application/json"):
    return lambda request: RawReply(status, body, content_type)


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        (raw(400, b'{"error":{"message":"too long"}}'), 400, "too long"),
        (raw(500, b'{"error":{"message":"out of memory"}}'), 500, "out of memory"),
        (raw(503, b"<html>Bad gateway</html>", "text/html"), 503, "Bad gateway"),
        (raw(200, b"<html>login</html>", "text/html"), 502, "login"),
        (raw(200, b'{"choices": [', "application/json"), 502, "no answer to this call"),
        (raw(200, b'{"choices": null}', "application/json"), 502, "no answer to this call"),
    ],
    ids=["400", "500", "HTML 503", "HTML 200", "broken JSON", "no choices"],
)
async def test_a_failing_backend_is_passed_on_and_recorded(
    bench, reply: object, status: int, message: str
) -> None:
    bench.llm.reply = reply
    got, body = await bench.post(bench.ask())
    assert got == status
    assert message in json.loads(body)["error"]["message"]
    span = await bench.span()
    assert message in span.attributes[Key.ERROR]
    assert span.status.status_code == "ERROR"
    assert span.attributes["http.response.status_code"] == status
    assert json.loads(span.attributes[Key.INPUT_MESSAGES]) == bench.ask()["messages"]


async def test_the_key_that_a_backend_repeats_is_not_recorded(bench) -> None:
    key = "pk-8f3a6c1e5b7d"
    (entry,) = bench.models(bench.llm.url)
    entry["litellm_params"]["api_key"] = key
    proxy = LLMProxy(open=True, model_list=[entry], store=bench.store)
    await proxy.start()
    other = await bench.other(proxy)
    other.llm.reply = raw(401, b'{"error":{"message":"no such key: pk-8f3a6c1e5b7d"}}')
    got, _ = await other.post(other.ask())
    span = await other.span()
    assert got == 401
    assert '"no such key: ***"' in span.attributes[Key.ERROR]
    assert key not in span.model_dump_json()
    await proxy.stop()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"model": "echo",', 400, "not valid JSON"),
        (b"[1]", 400, "expected a JSON object"),
        (b'{"model": "echo"}', 400, "no 'messages'"),
        (b'{"messages": []}', 400, "no 'model'; served models: echo"),
        (b'{"model": "gpt", "messages": []}', 404, "unknown model 'gpt'; served models: echo"),
    ],
)
async def test_a_wrong_request_is_refused_by_name_and_recorded(
    bench, body: bytes, status: int, message: str
) -> None:
    got, answer = await bench.post(body)
    assert got == status
    error = json.loads(answer)["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert message in (await bench.span()).attributes[Key.ERROR]
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
async def test_what_cannot_be_read_is_the_fault_of_who_sent_it(
    bench, path: str, body: bytes, message: str
) -> None:
    (entry,) = bench.models(bench.llm.url)
    bench.proxy.update_model_list([{**entry, "forced_parameters": {"all": {"temperature": 1.0}}}])
    status, answer = await bench.post(body, path=path)
    assert status == 400
    assert message in json.loads(answer)["error"]["message"]
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
async def test_very_many_brackets_of_a_backend_are_no_answer(
    bench, path: str, reply: object, status: int
) -> None:
    bench.llm.reply = reply
    asked = {**bench.ask(stream=status == 200), "max_tokens": 3}
    got, answer = await bench.post(asked, path=path)
    assert got == status
    assert b"error" in answer
    assert b"the gateway failed" not in answer
    assert (await bench.span()).attributes[Key.ERROR]


async def test_a_body_over_the_limit_is_refused(bench) -> None:
    proxy = LLMProxy(
        open=True, model_list=bench.models(bench.llm.url), store=bench.store, max_body_bytes=100
    )
    await proxy.start()
    status, body = await bench.post(bench.ask("x" * 100), f"{proxy.address.url()}/v1")
    await proxy.stop()
    assert status == 413
    assert "larger than 100 bytes" in json.loads(body)["error"]["message"]


async def test_a_backend_that_is_down_is_502_after_the_retries(bench) -> None:
    proxy = LLMProxy(
        open=True,
        model_list=bench.models(f"http://127.0.0.1:{free_port()}/v1"),
        store=bench.store,
        num_retries=2,
    )
    await proxy.start()
    url = proxy.as_resource(bench.rollout.rollout_id, bench.rollout.attempt.attempt_id).endpoint
    status, body = await bench.post(bench.ask(), url)
    await proxy.stop()
    assert status == 502
    assert "cannot be reached after 3 tries" in json.loads(body)["error"]["message"]
    span = await bench.span()
    assert "cannot be reached after 3 tries" in span.attributes[Key.ERROR]


async def test_an_overloaded_backend_is_tried_again_within_one_record(bench) -> None:
    proxy = LLMProxy(
        open=True, model_list=bench.models(bench.llm.url), store=bench.store, num_retries=1
    )
    await proxy.start()
    url = proxy.as_resource(bench.rollout.rollout_id, bench.rollout.attempt.attempt_id).endpoint
    bench.llm.reply = lambda request: (
        "fine" if len(bench.llm.requests) > 1 else RawReply(503, b"{}")
    )
    status, _ = await bench.post(bench.ask(), url)
    await proxy.stop()
    assert status == 200
    assert len(bench.llm.requests) == 2
    assert Key.ERROR not in (await bench.span()).attributes


async def test_a_client_that_hangs_up_mid_stream_is_recorded_with_what_had_come(
    bench,
) -> None:
    bench.llm.latency_seconds = 0.05
    async with aiohttp.ClientSession() as session:
        body = bench.ask(" ".join("word" for _ in range(40)), stream=True)
        async with session.post(f"{bench.url}/chat/completions", json=body) as response:
            await response.content.readany()
    span = await bench.span()
    assert "client closed the connection" in span.attributes[Key.ERROR]
    assert len(span.attributes.get(Key.RESPONSE_TOKEN_IDS, [])) < 40
    assert span.attributes[Key.RESPONSE_ID] == "chatcmpl-1"


async def test_a_client_that_hangs_up_before_the_answer_is_recorded(bench, held) -> None:
    bench.llm.reply = held
    call = asyncio.create_task(bench.post(bench.ask()))
    await held.asked()
    call.cancel()
    assert "client closed the connection" in (await bench.span()).attributes[Key.ERROR]


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', "ended before"),
        (b'data: {"error":{"message":"worker died"}}\n\n', "worker died"),
        (b"data: {broken\n\n", "not JSON"),
    ],
)
async def test_a_stream_that_breaks_tells_the_agent_and_the_record(
    bench, stream: bytes, error: str
) -> None:
    bench.llm.reply = raw(200, stream, "text/event-stream")
    status, body = await bench.post(bench.ask(stream=True))
    assert status == 200
    last = body.strip().split(b"\n\n")[-1].removeprefix(b"data: ")
    assert error in json.loads(last)["error"]["message"]
    assert error in (await bench.span()).attributes[Key.ERROR]


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
        mistyped(logprobs=[1]),
        mistyped(token_ids=5),
    ],
)
async def test_a_stream_of_wrong_types_ends_as_one_that_breaks(
    bench, stream: bytes, path: str
) -> None:
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
async def test_an_answer_that_can_have_no_body_is_an_error_of_the_backend(
    bench, status: int
) -> None:
    bench.llm.reply = lambda request: (
        "fine" if len(bench.llm.requests) > 1 else RawReply(status, b"")
    )
    async with aiohttp.ClientSession() as session:
        for expected in (502, 200):  # on one connection
            url = f"{bench.url}/chat/completions"
            async with session.post(url, json=bench.ask()) as response:
                assert response.status == expected
                await response.json()


async def test_an_answer_without_a_choice_is_recorded_as_an_error(bench) -> None:
    bench.llm.reply = raw(200, b'{"id": "c", "choices": []}')
    assert (await bench.post(bench.ask()))[0] == 200
    assert (await bench.span()).attributes[Key.ERROR] == "the backend's answer has no choice"


async def test_less_than_no_tokens_count_as_none_told(bench) -> None:
    message = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": -5, "completion_tokens": -7}
    usage |= {"prompt_tokens_details": {"cached_tokens": -1}}
    answer = {"id": "c", "choices": [{**message, "token_ids": [1, 2]}], "usage": usage}
    bench.llm.reply = raw(200, json.dumps(answer).encode())
    await bench.post(bench.ask())
    attributes = (await bench.span()).attributes
    assert attributes[Key.OUTPUT_TOKENS] == 2
    assert not {Key.INPUT_TOKENS, Key.CACHED_INPUT_TOKENS} & attributes.keys()


async def test_half_an_attribution_is_refused(bench) -> None:
    url = bench.proxy.as_resource().get_base_url()
    status, body = await bench.post(bench.ask(), url, **{"x-rollout-id": "ro-1"})
    assert status == 400
    assert "x-attempt-id" in json.loads(body)["error"]["message"]


async def test_an_unknown_address_and_a_wrong_method_are_named(bench) -> None:
    base = bench.url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{base}/v1/embeddings", json={}) as response:
            assert response.status == 404
            assert "/v1/chat/completions" in (await response.json())["error"]["message"]
        async with session.get(f"{base}/v1/chat/completions") as response:
            assert response.status == 405


async def test_a_call_of_an_unknown_attempt_is_refused_and_costs_no_other_record(bench) -> None:
    llm = ProxyLLM(endpoint=f"{bench.proxy.address.url()}/v1", model="echo")
    (unknown, body), (known, _) = await asyncio.gather(
        bench.post(bench.ask("lost"), llm.get_base_url("ro-x", "at-x")),
        bench.post(bench.ask("kept")),
    )
    assert (unknown, known) == (404, 200)
    assert "unknown attempt 'at-x' of rollout 'ro-x'" in json.loads(body)["error"]["message"]
    assert json.loads((await bench.span()).attributes[Key.INPUT_MESSAGES])[0]["content"] == "kept"


def test_run_whose_gateway_fails_to_stop_has_its_on_run_end_all_the_same(echo_llm) -> None:
    class FailsToStop(LLMProxy):
        async def stop(self) -> None:
            await super().stop()
            raise OSError("no space left")

    entry = {
        "model_name": "echo",
        "litellm_params": {"model": "hosted_vllm/echo", "api_base": echo_llm.url},
    }
    told = []

    class Watch:
        def on_run_start(self) -> None:
            told.append("start")

        def on_run_end(self, error) -> None:
            told.append(error)

    gateway = FailsToStop(free_port(), [entry])
    trainer = agl.Trainer(algorithm="baseline", strategy="shm", llm_proxy=gateway, hooks=[Watch()])
    with pytest.raises(AlgorithmError, match="no space left"):
        trainer.fit(agl.rollout(lambda task: 1.0), ["task"])
    assert told == ["start", None]
