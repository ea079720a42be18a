"""Anthropic's real client through the gateway, to a backend that speaks chat completions."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import until

from agl.semconv import ModelCallAttributes as Key
from agl_gateway.dialects.messages import Messages
from agl_gateway.errors import RefusedError
from agl_testing.echo_llm import EchoLLM, RawReply

from .conftest import CHAT_TOOL, SCHEMA, Bench, answering

anthropic = pytest.importorskip("anthropic")

TOOL = {"name": "look", "description": "Look into a room", "input_schema": SCHEMA}
KEEP_THINKING = "clear_thinking_20251015"
PIXEL = "iVBORw0KGgo="
SAME = (Key.INPUT_MESSAGES, Key.OUTPUT_MESSAGES, Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS)
SAME += (Key.RESPONSE_LOGPROBS, Key.FINISH_REASONS, Key.INPUT_TOKENS, Key.OUTPUT_TOKENS)


def ask(content: object = "hello big world", **fields: object) -> dict:
    return Bench.ask(content, **{"max_tokens": 50, **fields})


def chat_of(**fields: object) -> dict:
    """The chat that a message is translated to."""
    return json.loads(Messages().read(json.dumps(ask(**fields)).encode()).request)


def comparable(value: object) -> object:
    """Messages are recorded as JSON, whose spaces and order of keys say nothing."""
    return json.loads(value) if isinstance(value, str) else value


def think_and_look(request: dict) -> dict:
    """Thoughts, text and two calls at once; after the results only text."""
    if request["messages"][-1]["role"] == "tool":
        return {"role": "assistant", "content": "both are empty"}
    calls = [
        {"id": f"call_{room}", "type": "function", "function": {"name": "look", "arguments": given}}
        for room in ("kitchen", "hall")
        if (given := json.dumps({"room": room}))
    ]
    said = {"content": "let me look", "reasoning_content": "which rooms are there"}
    return {"role": "assistant", **said, "tool_calls": calls}


@pytest.fixture
async def client(bench):
    url = bench.url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_message_is_answered_and_recorded_like_a_chat(bench, client):
    message = await client.messages.create(**ask(system="be brief"))
    assert [block.text for block in message.content] == ["hello big world"]
    assert (message.stop_reason, message.model, message.role) == ("end_turn", "echo", "assistant")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (10, 4)
    (request,) = bench.llm.requests
    assert request["messages"][0] == {"role": "system", "content": "be brief"}
    await bench.post({**bench.ask(), "messages": request["messages"]})
    translated, plain = (span.attributes for span in await bench.spans())
    for key in SAME:
        assert comparable(translated[key]) == comparable(plain[key])
    assert translated[Key.RESPONSE_ID] == message.id


async def test_a_stream_has_anthropics_events_and_amounts_to_the_whole_message(bench, client):
    bench.llm.reply = think_and_look
    whole = await client.messages.create(**ask(tools=[TOOL]))
    events = [
        event async for event in await client.messages.create(**ask(tools=[TOOL]), stream=True)
    ]
    async with client.messages.stream(**ask(tools=[TOOL])) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert streamed.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})
    assert whole.content[-1].input == {"room": "hall"}
    assert whole.stop_reason == "tool_use"
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens
    first, second, _ = (span.attributes for span in await bench.spans())
    for key in SAME:
        assert comparable(second[key]) == comparable(first[key])
    assert json.loads(first[Key.TOOL_DEFINITIONS]) == [CHAT_TOOL]


async def test_results_of_tools_continue_the_prompt_token_by_token(bench, client):
    bench.llm.reply = think_and_look
    answer = await client.messages.create(**ask(tools=[TOOL]))
    said = [block.model_dump() for block in answer.content]
    no = {"type": "tool_result", "content": [{"type": "text", "text": "no"}]}
    results = [{**no, "tool_use_id": one["id"]} for one in said if one["type"] == "tool_use"]
    messages = [
        {"role": "user", "content": "hello big world"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [*results, {"type": "text", "text": "and now?"}]},
    ]
    bench.llm.reply = lambda request: "both are empty"
    last = await client.messages.create(**ask(tools=[TOOL], messages=messages))
    assert last.content[0].text == "both are empty"
    sent = bench.llm.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[1]["reasoning"] == "which rooms are there"
    assert sent[2] == {"role": "tool", "tool_call_id": "call_kitchen", "content": "no"}
    first, second = (span.attributes for span in await bench.spans())
    before = first[Key.PROMPT_TOKEN_IDS] + first[Key.RESPONSE_TOKEN_IDS]
    assert second[Key.PROMPT_TOKEN_IDS][: len(before)] == before


LOOK = {"type": "function", "function": {"name": "look"}}
ANSWER_FORM = {"type": "json_schema", "schema": SCHEMA}
CHAT_FORM = {"name": "answer", "schema": SCHEMA, "strict": True}
CHAT_CONFIG = {
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": CHAT_FORM},
}
AUTO_ONE = {"type": "auto", "disable_parallel_tool_use": True}
CACHED = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop_sequences": ["END"]}, {"stop": ["END"]}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"metadata": {"user_id": "u"}}, {"user": "u"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": AUTO_ONE}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"tool_choice": {"type": "tool", "name": "look"}}, {"tool_choice": LOOK}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, {}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}),
        ({"context_management": {"edits": [{"type": KEEP_THINKING, "keep": "all"}]}}, {}),
        ({"output_config": {"effort": "low", "format": ANSWER_FORM}}, CHAT_CONFIG),
        ({"system": [CACHED]}, {}),
    ],
)
def test_fields_are_translated(fields, expected):
    request = chat_of(**fields)
    for key in ("model", "messages"):
        del request[key]
    assert request == {"max_completion_tokens": 50, **expected}


def test_what_claude_code_tells_anthropics_accounts_reaches_no_model():
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.329.0f8;"}
    own = {"type": "text", "text": "be brief"}
    assert chat_of(system=[billing, own])["messages"][0]["content"] == "be brief"
    assert [each["role"] for each in chat_of(system=[billing])["messages"]] == ["user"]


def test_a_deferred_tool_is_offered_when_a_search_has_found_it():
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    tools = [search, {**TOOL, "defer_loading": True}]
    before = chat_of(tools=tools)
    assert [tool["function"]["name"] for tool in before["tools"]] == ["ToolSearch"]
    use = {"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {"query": "look"}}
    reference = {"type": "tool_reference", "tool_name": "look"}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [reference]}
    messages = [
        *ask()["messages"],
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    after = chat_of(tools=tools, messages=messages)
    assert [tool["function"]["name"] for tool in after["tools"]] == ["ToolSearch", "look"]
    assert after["tools"][1] == CHAT_TOOL
    assert after["messages"][-1]["content"] == "look can be called now."


async def test_an_image_is_a_part_of_the_chat_message(bench, client):
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
    await client.messages.create(**ask(content))
    assert bench.llm.requests[0]["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]


async def test_a_begun_answer_is_continued(bench, client):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The sun is"}]
    await client.messages.create(**ask(messages=messages))
    request = bench.llm.requests[0]
    assert request["messages"] == messages
    assert (request["continue_final_message"], request["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize("given", ['{"room": ', "[" * 5000], ids=["cut off", "many brackets"])
async def test_arguments_that_are_no_json_reach_the_agent_and_come_back(bench, client, given):
    function = {"name": "look", "arguments": given}
    call = {"id": "c", "type": "function", "function": function}
    bench.llm.reply = lambda request: {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = await client.messages.create(**ask(tools=[TOOL]))
    (block,) = answer.content
    assert block.input == {"INVALID_JSON": given}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
    messages = [
        *ask()["messages"],
        {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    await client.messages.create(**ask(tools=[TOOL], messages=messages))
    assert bench.llm.requests[1]["messages"][1]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "content_filter"}, ("refusal", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "stop", "stop_reason": 151645}, ("end_turn", None)),
        ({"finish_reason": "stop", "matched_stop": "END"}, ("stop_sequence", "END")),
    ],
)
async def test_why_it_stopped_is_translated(bench, client, choice, expected):
    bench.llm.reply = answering(**choice)
    message = await client.messages.create(**ask())
    assert (message.stop_reason, message.stop_sequence) == expected


def edits(**one: str) -> dict:
    return {"context_management": {"edits": [one]}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search_20250305"}]}, "tools: there are only tools that"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "type 'video'"),
        ({"max_tokens": None}, "max_tokens: is missing"),
        ({"max_tokens": "many"}, "max_tokens: expected a whole number, got 'many'"),
        ({"temprature": 1}, "temprature: unknown; did you mean 'temperature'?"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "blinking"}}, "thinking.display"),
        (edits(type="clear_tool_uses_20250919"), "edits.0.type: got 'clear_tool_uses_20250919'"),
        (edits(type=KEEP_THINKING, keep="none"), "context_management.edits.0.keep"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(fields, named):
    with pytest.raises(RefusedError) as refused:
        chat_of(**fields)
    assert named in refused.value.message
    assert refused.value.status == 400


PDF = {"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}
NOTES = {"type": "document", "source": {"type": "text", "data": "milk"}}
TEXT = {"type": "text", "text": "in the hall"}
FOUND = {"type": "search_result", "source": "http://k", "title": "Keys", "content": [TEXT]}
ODD_BLOCKS = [
    ("user", {"type": "tool_result", "tool_use_id": "c", "content": [PDF]}, "'document', left out"),
    ("user", NOTES, "milk"),
    ("user", FOUND, "Keys\\nhttp://k\\nin the hall"),
    ("assistant", {**TEXT, "citations": [{"type": "char_location"}]}, '"in the hall"'),
    ("assistant", {"type": "redacted_thinking", "data": "x"}, "[a thought, left out: only its"),
    ("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search"}, "server_tool_use"),
    ("user", {"type": "web_search_tool_result", "content": []}, "'web_search_tool_result', left"),
    ("user", {"type": "tool_result", "tool_use_id": "c", "is_error": True}, "The tool failed."),
    ("user", {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "no"}, "no"),
]


@pytest.mark.parametrize(("role", "block", "text"), ODD_BLOCKS)
async def test_history_that_no_server_takes_is_replaced_and_marked(bench, role, block, text):
    asked = ask(messages=[{"role": role, "content": [block]}, *ask()["messages"]])
    assert (await bench.post(asked, path="messages"))[0] == 200
    assert text in json.dumps(bench.llm.requests[0]["messages"][0])
    (mark,) = (await bench.attributes())[Key.OVERRIDDEN]
    assert mark.startswith("messages.0.content.0")
    bench.serve(strict=True)
    status, error = await bench.refused(asked, path="messages")
    assert status == 400
    assert mark in error["message"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("as_is", ["system: a", "user: b", "system: c"]),
        ("merge", ["system: a\n\nc", "user: b"]),
        ("as_user", ["system: a", "user: b", "user: c"]),
        ("refuse", None),
    ],
)
async def test_system_messages_in_the_middle_are_what_the_model_wants(bench, how, expected):
    bench.serve(system_messages=how)
    said = [("user", "b"), ("system", [{"type": "text", "text": "c"}])]
    messages = [{"role": role, "content": content} for role, content in said]
    status, _ = await bench.post(ask(system="a", messages=messages), path="messages")
    assert status == (200 if expected else 400)
    sent = [
        [f"{one['role']}: {one['content']}" for one in request["messages"]]
        for request in bench.llm.requests
    ]
    assert sent == ([expected] if expected else [])
    assert (Key.OVERRIDDEN in await bench.attributes()) == (how in ("merge", "as_user"))


SEARCH = [
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
]


@pytest.mark.parametrize(
    ("choice", "offered", "expected"),
    [
        ({"type": "any"}, [{**TOOL, "defer_loading": True}], (["look"], "required")),
        ({"type": "tool", "name": "web_search"}, [TOOL], (["look"], "auto")),
        ({"type": "tool", "name": "look"}, [TOOL], (["look"], {"name": "look"})),
    ],
)
async def test_tools_that_only_a_provider_runs_are_marked(bench, choice, offered, expected):
    asked = ask(tools=[*SEARCH, *offered], tool_choice=choice)
    assert (await bench.post(asked, path="messages"))[0] == 200
    (request,) = bench.llm.requests
    names = [tool["function"]["name"] for tool in request.get("tools", ())] or None
    chosen = request.get("tool_choice")
    assert (names, chosen["function"] if isinstance(chosen, dict) else chosen) == expected
    assert "web_search_20250305" in (await bench.attributes())[Key.OVERRIDDEN][0]
    bench.serve(strict=True)
    assert (await bench.post(asked, path="messages"))[0] == 400


class Tokenizing(EchoLLM):
    """Counts as vLLM does."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/tokenize":
            await super().__call__(scope, receive, send)
            return
        asked = json.loads((await receive())["body"])
        ids = self.render(asked["messages"], asked.get("tools", ()))
        body = json.dumps({"count": len(ids), "tokens": ids}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


async def test_tokens_are_counted_by_the_server_or_estimated(bench, client):
    asked = {"model": "echo", "system": "be kind", "tools": [TOOL], "messages": ask()["messages"]}
    estimate = await client.messages.count_tokens(**asked)
    assert estimate.is_estimate
    with Tokenizing() as llm:
        bench.serve(llm.url)
        counted = await client.messages.count_tokens(**asked)
        answer = await client.messages.create(**ask(system="be kind", tools=[TOOL]))
    assert counted.to_dict() == {"input_tokens": answer.usage.input_tokens}
    assert 0 < estimate.input_tokens < 9 * counted.input_tokens
    bench.serve(strict=True)
    with pytest.raises(anthropic.NotFoundError, match=r"tokenize answered 404"):
        await client.messages.count_tokens(**asked)
    assert len(await bench.spans()) == 1


async def test_who_leaves_while_it_asks_for_a_count_is_no_error_of_ours(client, caplog):
    caplog.set_level("INFO", "agl.gateway")
    url = client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    path = f"{url.path}v1/messages/count_tokens"
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Length: 99\r\n\r\n"
    writer.write(head.encode() + b"{")
    await writer.drain()
    writer.close()
    await until(lambda: "while it sent the request" in caplog.text)
    assert "Exception" not in caplog.text


CALLED = {"name": "look", "arguments": "{}"}


def calling(*calls: dict[str, Any]) -> Callable[[dict[str, Any]], RawReply]:
    return answering({"role": "assistant", "content": None, "tool_calls": calls})


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda _: RawReply(200, b'{"choices":[]}'), "no list of choices"),
        (lambda _: RawReply(200, b'{"choices":[{"message":"a"}]}'), "a wrong form"),
        (calling({"id": "c"}), "tool call 0 has no name"),
        (calling({"id": "c", "function": CALLED}, {}), "tool call 1 has no"),
    ],
    ids=["no choices", "no message", "a call without name", "a second one"],
)
async def test_an_answer_that_cannot_be_translated_is_an_error(bench, reply, message):
    bench.llm.reply = reply
    got, body = await bench.post(ask(), path="messages")
    error = json.loads(body)
    assert (got, error["type"], error["error"]["type"]) == (502, "error", "api_error")
    assert message in error["error"]["message"]
    assert message in (await bench.attributes())[Key.ERROR]


async def test_events_arrive_while_the_backend_is_still_answering(bench, client):
    bench.llm.latency_seconds = 0.3
    clock = asyncio.get_running_loop().time
    stream = await client.messages.create(**ask(), stream=True)
    times = [clock() async for event in stream if event.type == "content_block_delta"]
    assert len(times) == 3
    assert times[-1] - times[0] > 0.3
