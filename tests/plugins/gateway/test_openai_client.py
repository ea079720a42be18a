"""The real ``openai`` package through the proxy, compared with the same calls made directly."""

import asyncio
import json

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl_testing.echo_llm import EchoLLM, logprob

from .conftest import CHAT_TOOL as TOOL, Bench, models

pytest.importorskip("openai")


ask = Bench.ask


def call_the_tool(request: dict) -> dict | str:
    if request["messages"][-1]["role"] == "tool":
        return "it is empty"
    function = {"name": "look", "arguments": '{"room": "kitchen"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


REQUESTS = [
    ask("héllo  big\nworld"),
    ask(logprobs=True),
    ask(n=2),
    ask(stream=True),
    ask(stream=True, logprobs=True, stream_options={"include_usage": True}),
    ask(return_token_ids=True),
    ask(stream=True, return_token_ids=True),
    ask(tools=[TOOL]),
    ask(tools=[TOOL], stream=True),
]


@pytest.mark.parametrize("tools", [False, True])
async def test_answers_have_the_bytes_that_the_backend_would_have_sent(bench, tools):
    bench.llm.reply = call_the_tool if tools else bench.llm.reply
    with EchoLLM(call_the_tool if tools else None) as direct:
        for request in REQUESTS:
            expected = await bench.post(request, direct.url)
            assert await bench.post(request) == expected
    assert len(await bench.spans()) == len(REQUESTS)


async def test_a_chat_is_recorded_with_ids_and_logprobs_which_the_agent_does_not_see(bench, client):
    given = {**ask(temperature=0.5), "extra_headers": {"x-agl-agent": "writer"}}
    answer = await client.chat.completions.create(**given)
    assert answer.choices[0].message.content == "hello big world"
    assert answer.choices[0].logprobs is None
    assert not hasattr(answer, "prompt_token_ids")
    assert not hasattr(answer.choices[0], "token_ids")
    span = await bench.span()
    attributes = span.attributes
    token_ids = attributes[Key.RESPONSE_TOKEN_IDS]
    words = bench.llm.vocabulary.decode
    assert words(token_ids) == ["hello", "big", "world", "<|end|>"]
    assert words(attributes[Key.PROMPT_TOKEN_IDS])[0] == "<|user|>"
    assert attributes[Key.RESPONSE_LOGPROBS] == [logprob(token_id) for token_id in token_ids]
    assert json.loads(attributes[Key.INPUT_MESSAGES]) == ask()["messages"]
    assert json.loads(attributes[Key.OUTPUT_MESSAGES])[0]["content"] == "hello big world"
    assert attributes[Key.RESPONSE_ID] == answer.id
    assert attributes[Key.AGENT_NAME] == "writer"
    assert attributes[Key.FINISH_REASONS] == ["stop"]
    assert (attributes[Key.INPUT_TOKENS], attributes[Key.OUTPUT_TOKENS]) == (6, 4)
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert Key.ERROR not in attributes
    assert span.name == "openai.chat.completion"
    assert span.status.status_code == "OK"
    assert span.start_time < span.end_time


async def test_chunks_arrive_while_the_backend_is_still_answering(bench, client):
    bench.llm.latency_seconds = 0.1
    clock = asyncio.get_running_loop().time
    stream = await client.chat.completions.create(**ask(stream=True))
    times = [clock() async for _ in stream]
    assert len(times) == 5
    assert times[-1] - times[0] > 0.3


async def test_tool_calls_are_recorded_whole_and_streamed(bench, client):
    bench.llm.reply = call_the_tool
    create, streamed = client.chat.completions.create, ask(tools=[TOOL], stream=True)
    answer = await create(**ask(tools=[TOOL]))
    await (await create(**streamed)).close()
    async for _ in await create(**streamed):
        pass
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"room": "kitchen"}'
    spans = await bench.spans()
    whole, streamed = spans[0].attributes, spans[-1].attributes
    (call,) = json.loads(whole[Key.OUTPUT_MESSAGES])[0]["tool_calls"]
    assert call["function"]["name"] == "look"
    (message,) = json.loads(streamed[Key.OUTPUT_MESSAGES])
    assert message["tool_calls"] == [call]
    assert json.loads(whole[Key.TOOL_DEFINITIONS]) == [TOOL]
    assert streamed[Key.RESPONSE_TOKEN_IDS] == whole[Key.RESPONSE_TOKEN_IDS]


async def test_the_weights_that_answered_are_recorded_when_asked_for(started):
    bench = await started(callbacks=("return_token_ids", "logprobs", "weight_versions"))
    bench.llm.model_version = "step-7"
    for stream in (False, True):
        _, body = await bench.post(ask(stream=stream))
        assert b"weight_versions" not in body
    spans = await bench.spans()
    assert [span.attributes[Key.MODEL_VERSION] for span in spans] == ["step-7", "step-7"]


async def test_models_are_listed(bench, client):
    bench.proxy.update_model_list(models(bench.llm.url, "a", "b"))
    assert [model.id async for model in client.models.list()] == ["a", "b"]
