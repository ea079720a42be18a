"""The Responses API of the real ``openai`` client, to a backend that speaks chat completions."""

import json

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl_gateway.dialects.responses import Responses
from agl_gateway.errors import RefusedError
from agl_testing.echo_llm import logprob

from .conftest import answering
from .test_dialect_messages import think_and_look

openai = pytest.importorskip("openai")

SCHEMA = {
    "type": "object",
    "properties": {"room": {"type": "string"}},
    "required": ["room"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}

LOOK = {"type": "function", "function": {"name": "look"}}
HOSTED = {"type": "web_search"}
ALLOWED = {"type": "allowed_tools", "mode": "required"}
NOT_OURS = "tool_choice.tools: none of them is a tool in 'tools' that the agent runs"
JSON_FORM = {"type": "json_object"}
SPACE = {"type": "namespace", "name": "s"}


def ask(given: object = "hello big world", **fields: object) -> dict:
    return {"model": "echo", "input": given, **fields}


def read(**fields: object):
    """The exchange that a request becomes."""
    return Responses().read(json.dumps(ask(**fields)).encode())


async def events_of(client, **asked: object) -> list:
    return [event async for event in await client.responses.create(**asked, stream=True)]


async def test_a_response_is_answered_and_recorded_like_a_chat(bench, client):
    response = await client.responses.create(**ask(instructions="be brief"))
    assert response.output_text == "hello big world"
    assert (response.status, response.error, response.store) == ("completed", None, True)
    assert response.instructions == "be brief"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 4)
    messages = bench.llm.requests[0]["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    await bench.post({"model": "echo", "messages": messages})
    translated, plain = (span.attributes for span in await bench.spans())
    for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS):
        assert translated[key] == plain[key]
    assert json.loads(translated[Key.INPUT_MESSAGES]) == messages
    assert translated[Key.RESPONSE_ID] == response.id


async def test_a_stream_has_the_events_of_the_api_and_amounts_to_the_whole_response(bench, client):
    bench.llm.reply = think_and_look
    whole = await client.responses.create(**ask(tools=[TOOL]))
    events = await events_of(client, **ask(tools=[TOOL]))
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [item.type for item in whole.output] == kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    begin = ["response.created", "response.in_progress", "response.output_item.added"]
    assert [event.type for event in events[:3]] == begin
    streamed = events[-1].response
    assert events[-1].type == "response.completed"
    unlike = {"id", "created_at"}
    outer, items = (
        [one.model_dump(exclude={*unlike, "output"}) for one in (streamed, whole)],
        [[item.model_dump(exclude=unlike) for item in one.output] for one in (streamed, whole)],
    )
    assert outer[0] == outer[1]
    assert items[0] == items[1]
    async with client.responses.stream(**ask(tools=[TOOL])) as stream:
        gathered = await stream.get_final_response()
    assert [item.type for item in gathered.output] == kinds
    assert gathered.output_text == "let me look"
    first, second, _ = (span.attributes for span in await bench.spans())
    assert json.loads(first[Key.TOOL_DEFINITIONS]) == [CHAT_TOOL]
    assert second[Key.RESPONSE_TOKEN_IDS] == first[Key.RESPONSE_TOKEN_IDS]


async def test_outputs_of_functions_continue_the_prompt_token_by_token(bench, client):
    bench.llm.reply = think_and_look
    response = await client.responses.create(**ask(tools=[TOOL]))
    items = [
        {"role": "user", "content": "hello big world"},
        *(item.model_dump(exclude_none=True) for item in response.output),
        {"type": "function_call_output", "call_id": "call_kitchen", "output": "empty"},
        {"type": "function_call_output", "call_id": "call_hall", "output": "empty"},
    ]
    bench.llm.reply = lambda request: "both are empty"
    last = await client.responses.create(**ask(items, tools=[TOOL]))
    assert last.output_text == "both are empty"
    sent = bench.llm.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    first, second = (span.attributes for span in await bench.spans())
    before = first[Key.PROMPT_TOKEN_IDS] + first[Key.RESPONSE_TOKEN_IDS]
    assert second[Key.PROMPT_TOKEN_IDS][: len(before)] == before


async def test_a_structured_answer_is_asked_for_and_parsed(bench, client):
    from pydantic import BaseModel

    class Room(BaseModel):
        room: str

    bench.llm.reply = lambda request: '{"room": "hall"}'
    response = await client.responses.parse(**ask(), text_format=Room)
    assert response.output_parsed == Room(room="hall")
    wanted = bench.llm.requests[0]["response_format"]
    assert wanted["type"] == "json_schema"
    assert {"name": "Room", "strict": True}.items() <= wanted["json_schema"].items()


async def test_logprobs_are_given_when_they_are_asked_for(bench, client):
    include = ["message.output_text.logprobs"]
    plain = await client.responses.create(**ask())
    response = await client.responses.create(**ask(include=include))
    events = await events_of(client, **ask(include=include))
    assert plain.output[0].content[0].logprobs == []
    tokens = response.output[0].content[0].logprobs
    ids = bench.llm.vocabulary.encode(["hello", "big", "world"])
    assert [token.logprob for token in tokens][:3] == [logprob(token_id) for token_id in ids]
    streamed = [event for event in events if event.type == "response.output_text.delta"]
    assert [event.logprobs[0].token for event in streamed] == ["hello ", "big ", "world"]


async def test_an_answer_that_is_cut_off_is_incomplete(bench, client):
    bench.llm.reply = answering(finish_reason="length")
    response = await client.responses.create(**ask())
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.status == response.output[0].status == "incomplete"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": JSON_FORM}}, {"response_format": JSON_FORM}),
        ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": True}),
        ({"tool_choice": {"type": "function", "name": "look"}}, {"tool_choice": LOOK}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"user": "u", "safety_identifier": "s"}, {"user": "u", "safety_identifier": "s"}),
        ({"store": False, "previous_response_id": None, "truncation": "disabled"}, {}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"summary": "detailed", "context": "all_turns"}}, {}),
        ({"client_metadata": {"session_id": "s"}}, {}),
        ({"include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    ],
)
def test_fields_are_translated(fields, expected):
    request = json.loads(read(**fields).request)
    for key in ("model", "messages"):
        del request[key]
    assert request == expected


def test_items_of_every_kind_are_translated():
    url = "data:image/png;base64,iVBORw0KGgo="
    image = {"type": "input_image", "image_url": url, "detail": "low"}
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "please"}]},
    ]
    shown = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    assert json.loads(read(given=items).request)["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, shown]},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "please"},
    ]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "keeps for calls of no attempt"),
        ({"conversation": "conv_1"}, "send all items of the conversation in 'input'"),
        ({"store": True}, "store: the gateway keeps responses for the calls of their"),
        ({"background": True}, "background: the gateway answers while the agent waits"),
        ({"truncation": "auto"}, "truncation: got 'auto'"),
        ({"tools": [HOSTED]}, "tools: there are only tools that"),
        ({"tools": [{**SPACE, "tools": [HOSTED]}]}, "tools: there are only tools that"),
        ({"tools": [TOOL], "tool_choice": {**ALLOWED, "tools": [HOSTED]}}, NOT_OURS),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools.0.type: got 'computer_use_preview'"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary: got 'long'"),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context: got 'current_turn'"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "'input_video'"),
        ({"input": None}, "input: expected a string or a list of items"),
        ({"max_output_token": 5}, "did you mean 'max_output_tokens'?"),
        ({"tool_choice": "any"}, "tool_choice: got 'any'"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(fields, named):
    with pytest.raises(RefusedError) as refused:
        read(**fields)
    assert named in refused.value.message
    assert refused.value.status == 400


SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
LISTED = {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}
CITED = {"type": "output_text", "text": "so", "annotations": [{"type": "url_citation"}]}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (SUMMARY, '"reasoning_content": "hm"'),
        ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, "[a thought, left out"),
        ({"type": "web_search_call", "id": "w", "status": "completed"}, "'web_search_call', left"),
        (LISTED, "'mcp_list_tools'"),
        ({"type": "computer_call_output", "call_id": "c", "output": {}}, '"role": "user"'),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "'input_file'"),
        ({"role": "assistant", "content": [CITED]}, '"content": "so"'),
    ],
)
def test_history_that_no_server_takes_is_replaced_and_marked(item, text):
    exchange = read(given=[item, {"role": "user", "content": "and now?"}])
    assert text in json.dumps(json.loads(exchange.request)["messages"][0])
    assert exchange.degraded[0].startswith("input.0")


@pytest.mark.parametrize("choice", ["required", {"type": "web_search"}, None])
def test_tools_that_only_openai_runs_are_left_out_and_marked(choice):
    exchange = read(tools=[HOSTED, TOOL], tool_choice=choice)
    request = json.loads(exchange.request)
    assert request["tools"] == [CHAT_TOOL]
    assert request.get("tool_choice") == ("required" if choice == "required" else None)
    assert exchange.degraded[0].startswith("tools.0: a tool of type 'web_search'")


def test_a_namespace_without_tools_is_no_tool_that_openai_runs():
    assert "tools" not in json.loads(read(tools=[{**SPACE, "tools": []}]).request)


def test_only_allowed_tools_are_offered():
    allowed = [{"type": "function", "name": "look"}, {"type": "image_generation"}]
    tools = [TOOL, {**TOOL, "name": "leave"}]
    exchange = read(tools=tools, tool_choice={**ALLOWED, "tools": allowed})
    request = json.loads(exchange.request)
    assert (request["tools"], request["tool_choice"]) == ([CHAT_TOOL], "required")
    assert exchange.degraded
