"""The real ``openai`` package through the proxy, compared with the same calls made directly."""

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


def complete(prompt: object = "hello big world", **fields: object) -> dict:
    return {"model": "echo", "prompt": prompt, **fields}


COMPLETIONS = [
    complete(),
    complete(logprobs=1),
    complete(return_token_ids=True),
    complete([5, 6, 7]),
    complete(n=2),
    complete(stream=True),
    complete(stream=True, logprobs=1, stream_options={"include_usage": True}),
    complete(stream=True, return_token_ids=True),
]


@pytest.mark.parametrize(
    ("path", "requests", "reply"),
    [
        ("chat/completions", REQUESTS, None),
        ("chat/completions", REQUESTS, call_the_tool),
        ("completions", COMPLETIONS, None),
    ],
    ids=["chats", "tools", "completions"],
)
async def test_answers_have_the_bytes_that_the_backend_would_have_sent(
    bench, path, requests, reply
):
    bench.llm.reply = reply or bench.llm.reply
    with EchoLLM(reply) as direct:
        for request in requests:
            expected = await bench.post(request, direct.url, path)
            assert await bench.post(request, path=path) == expected
            assert expected[0] == 200
    assert len(await bench.spans()) == len(requests)


async def test_a_completion_is_recorded_with_its_tokens(bench, client):
    completion = await client.completions.create(**complete())
    stream = await client.completions.create(**complete(), stream=True)
    pieces = [chunk.choices[0].text async for chunk in stream]
    assert completion.choices[0].text == "".join(pieces) == "hello big world"
    for span in await bench.spans():
        attributes = span.attributes
        words = bench.llm.vocabulary.decode
        token_ids = attributes[Key.RESPONSE_TOKEN_IDS]
        assert words(attributes[Key.PROMPT_TOKEN_IDS]) == ["hello", "big", "world"]
        assert words(token_ids) == ["hello", "big", "world", "<|end|>"]
        assert attributes[Key.RESPONSE_LOGPROBS] == [logprob(token_id) for token_id in token_ids]
        assert attributes[Key.OPERATION] == "text_completion"
        (message,) = json.loads(attributes[Key.INPUT_MESSAGES])
        assert message == {"role": "user", "content": "hello big world"}
        (answer,) = json.loads(attributes[Key.OUTPUT_MESSAGES])
        assert answer["content"] == "hello big world"


async def test_a_record_names_agent_usage_and_parameters(bench, client):
    given = {**ask(temperature=0.5), "extra_headers": {"x-agl-agent": "writer"}}
    await client.chat.completions.create(**given)
    span = await bench.span()
    attributes = span.attributes
    assert json.loads(attributes[Key.INPUT_MESSAGES]) == ask()["messages"]
    assert attributes[Key.AGENT_NAME] == "writer"
    assert (attributes[Key.INPUT_TOKENS], attributes[Key.OUTPUT_TOKENS]) == (6, 4)
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert span.name == "openai.chat.completion"
    assert span.status.status_code == "OK"


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
