"""A server of one model, as plugins build them: what it takes, refuses and answers."""

import json
from typing import ClassVar

import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError

from agl_http.layers import send_whole
from agl_http.server import ServerThread
from agl_models.completions import (
    AnswerWriter,
    ChatRequest,
    Piece,
    RequestError,
    parse_request,
    render_prompt,
    room_for_answer,
    template_messages,
)
from agl_models.model_app import ModelApp

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"hall"}'}}


class Words:
    """A tokenizer of words, whose template refuses tools and leaves out systems."""

    def apply_chat_template(self, messages, **options):
        assert options["tokenize"]
        assert options["add_generation_prompt"]
        assert all(message["role"] != "tool" for message in messages), "no tools"
        said = [message for message in messages if message["role"] != "system"]
        return [len(message["role"] + message["content"]) for message in said]


class Parrot(ModelApp[ChatRequest]):
    """Calls a tool, with as many tokens as the prompt has."""

    request_type = ChatRequest
    owner = "tests"
    title = "the parrot"
    explained: ClassVar = {"n": "it has one beak"}
    max_body_bytes = 1000

    def prompt(self, request):
        return render_prompt(Words(), request)

    async def answer(self, request, scope, send):
        prompt = self.prompt(request)
        size = len(prompt)
        tokens = {"token_ids": prompt, "logprobs": [-0.5] * size, "token_texts": ["é"] * size}
        ends = {"finish_reason": "tool_calls", "tool_calls": [CALL], "version": "7"}
        about = {"text": "", "num_tokens": size, **tokens, **ends}
        pieces = [Piece(index, **about) for index in range(request.n)]
        writer = AnswerWriter(request, "chatcmpl-1", prompt)
        await send_whole(send, 200, *writer.answer(pieces))


@pytest.fixture
async def client():
    server = ServerThread(Parrot("polly", api_key="secret"))
    server.start()
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client
    server.stop()


SAID = {"role": "user", "content": "hi"}
ASKED = {
    "model": "polly",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}]}],
    **{"n": 2, "logprobs": True},
    "extra_body": {"return_token_ids": True},
}


async def test_a_stream_has_what_the_whole_answer_has(client):
    whole = await client.chat.completions.create(**ASKED)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await client.chat.completions.create(**ASKED, **streamed)
    chunks = [chunk async for chunk in stream]
    assert whole.usage == chunks[-1].usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1, 2)
    last = {choice.index: choice for chunk in chunks for choice in chunk.choices}
    for choice in whole.choices:
        assert choice.message.content is None
        assert [call.to_dict() for call in choice.message.tool_calls] == [CALL]
        (streamed,) = last[choice.index].delta.tool_calls
        assert {**streamed.to_dict(), "index": 0} == {**CALL, "index": 0}
        assert choice.token_ids == last[choice.index].token_ids == [len("userlook")]
        assert choice.logprobs.content == last[choice.index].logprobs.content
        assert choice.logprobs.content[0].bytes == list("é".encode())
        assert choice.weight_versions == [{"version": "7", "start": 0, "end": 1}]
    told = [one.prompt_token_ids for one in chunks if "prompt_token_ids" in one.to_dict()]
    assert told == [[len("userlook")]] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_body": {"beam": 2}}, "'beam': the parrot has no such option"),
        ({"n": 0}, "'n': it has one beak"),
        ({"stop": 3}, "'stop.str': .*; got 3"),
        ({"messages": []}, "'messages': .*at least 1"),
        ({"messages": [{"content": "hi"}]}, "'messages.0.role': .* one of system,.*; got nothing"),
        ({"messages": [SAID, {**SAID, "role": "bot"}]}, "'messages.1.role': .*; got 'bot'"),
        ({"messages": [{"role": "user", "tool_calls": ["x"]}]}, "'messages.0.content': .* nothing"),
        ({"messages": [{"role": "assistant", "content": None}]}, "'messages.0.content': .* None"),
        ({"messages": [{"role": "user", "content": 3}]}, "'messages.0.content': .*; got 3"),
        ({"messages": [{"role": "user", "content": ["text"]}]}, "parts of type 'text'"),
        ({"messages": [{**SAID, "tool_calls": ["x"]}]}, "'messages.0.tool_calls': expected a list"),
        ({"messages": [{**SAID, "tool_calls": [{}]}]}, "an object 'function'; got"),
        ({"messages": [{**SAID, "content": [{"type": "text", "text": 5}]}]}, "a string as 'text'"),
        ({"messages": [{**SAID, "role": "tool"}]}, "template or tokenizer refused them: no tools"),
        ({"messages": [{**SAID, "role": "developer"}]}, "makes no tokens of them"),
        ({"max_tokens": True}, "'max_tokens': .* integer; got True"),
        ({"logprobs": "yes"}, "'logprobs': .* boolean; got 'yes'"),
        ({"stream": 1, "n": 1}, "'stream': .* boolean; got 1"),
        ({"stream_options": {"include_usage": 1}}, "'stream_options.include_usage': .*; got 1"),
        ({"messages": [{"role": "user", "content": "x" * 1000}]}, "has 1001 bytes .* takes 1000"),
    ],
)
async def test_what_it_cannot_read_is_refused_by_name(client, changes, message):
    with pytest.raises(APIStatusError, match=message) as caught:
        await client.chat.completions.create(**{**ASKED, **changes})
    assert caught.value.status_code == (413 if "bytes" in message else 400)
    assert set(caught.value.response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * 20_000, "recursion limit"),
        (b'{"model":' * 20_000, "recursion limit"),
        (b"\xff", "line 1 column 1"),
        (b"[1", "EOF"),
        (b'["\\ud800"]', r"surrogate pair\?"),
        (b'["\\udc00 "]', r"surrogate pair\?"),
    ],
)
def test_a_body_that_is_no_json_is_the_requests_fault(body, why):
    said = f"the request body is not valid JSON: .*{why}"
    with pytest.raises(RequestError, match=said) as caught:
        parse_request(ChatRequest, body, "the parrot")
    assert caught.value.status == 400


async def test_only_health_needs_no_key(client):
    stranger = client.with_options(api_key="wrong")
    for call in (stranger.chat.completions.create(**ASKED), stranger.models.list()):
        with pytest.raises(AuthenticationError):
            await call
    root = str(client.base_url).removesuffix("/v1/")
    health = await stranger.get(f"{root}/health", cast_to=object)
    assert health == {"status": "ok"}
    asked = {"model": "polly", "messages": [SAID]}
    counted = await client.post(f"{root}/tokenize", body=asked, cast_to=object)
    assert counted == {"count": 1, "tokens": [len("userhi")]}
    assert [model.id async for model in client.models.list()] == ["polly"]


def test_arguments_of_tools_reach_templates_as_objects():
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    broken = {**CALL, "function": {"name": "look", "arguments": "{"}}
    messages = [assistant, {"role": "assistant", "tool_calls": [broken]}]
    first, second = template_messages([*messages])
    assert first["content"] == ""
    assert first["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "hall"}}
    assert second["tool_calls"] == [broken]
    assert json.loads(CALL["function"]["arguments"]) == {"at": "hall"}  # not changed in place


def test_an_answer_gets_what_is_left():
    def ask(**options):
        return ChatRequest(model="m", messages=[{"role": "user"}], **options)

    assert room_for_answer(ask(), 6, 10) == 4
    assert room_for_answer(ask(max_tokens=3), 6, 10) == 3
    assert room_for_answer(ask(max_tokens=3, max_completion_tokens=2), 6, 10) == 2
    with pytest.raises(RequestError, match="takes 10 tokens; the messages have 6 and 5"):
        room_for_answer(ask(max_tokens=5), 6, 10)
    with pytest.raises(RequestError, match="have 10 and 1"):
        room_for_answer(ask(), 10, 10)
