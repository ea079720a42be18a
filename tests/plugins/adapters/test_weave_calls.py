"""Weave's calls of the Responses API and of Anthropic's Messages, as real ones came (0.54)."""

import pytest

from agl.errors import AdapterError
from agl.types import TraceStatus
from agl.utils.otel import to_attributes
from agl_records.calls.sources import read_call

ASKED = {"role": "user", "content": "Where is it?"}
FUNCTION = {"name": "look", "arguments": '{"room": "kitchen"}'}
CALLED = {"id": "call_1", "type": "function", "function": FUNCTION}
USED = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"room": "kitchen"}}
RETURNED = {"type": "tool_result", "tool_use_id": "call_1", "content": "a key"}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a key"},
]
SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}}}
LOOK = {"name": "look", "description": "Look."}
TOOLS = [{"type": "function", "function": {**LOOK, "parameters": SCHEMA}}]


def operation(given: dict, output: dict | None) -> dict:
    nested = {"agentlightning.operation.input": given}
    if output is not None:
        nested["agentlightning.operation.output"] = output
    return {"weave.kind": "llm", **to_attributes(nested)}


RESPONSES = {
    "model": "qwen",
    "instructions": "Be brief.",
    "input": [
        ASKED,
        {"type": "function_call", "call_id": "call_1", **FUNCTION},
        {"type": "function_call_output", "call_id": "call_1", "output": "a key"},
    ],
    "tools": [{"type": "function", **LOOK, "parameters": SCHEMA}],
}
MESSAGES = {
    "model": "qwen",
    "system": "Be brief.",
    "messages": [
        ASKED,
        {"role": "assistant", "content": [USED]},
        {"role": "user", "content": [RETURNED]},
    ],
    "tools": [{**LOOK, "input_schema": SCHEMA}],
}

ANSWERED = {"type": "message", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end"}


def test_responses(trace) -> None:
    part = {"type": "output_text", "text": "There.", "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [part]}
    output = {"object": "response", "id": "resp-1", "model": "served", "status": "completed"}
    said = {"role": "assistant", "content": "There."}
    for changes, response, finish_reason in (
        ({"output": [message]}, said, "stop"),
        (
            {"output": [message, RESPONSES["input"][1]]},
            {**said, "tool_calls": [CALLED]},
            "tool_calls",
        ),
        ({"output": [message], "status": "incomplete"}, said, "length"),
    ):
        attributes = operation(RESPONSES, {**output, **changes})
        call = read_call(trace.span("openai.responses.create", attributes))
        assert (call.messages, call.tools, call.response) == (CONVERSATION, TOOLS, response)
        assert (call.model, call.response_id) == ("served", "resp-1")
        assert call.finish_reason == finish_reason


def test_anthropics_messages(trace) -> None:
    output = {"type": "message", "id": "msg-1", "model": "served", "role": "assistant"}
    output |= {"content": [{"type": "text", "text": "I look."}, USED], "stop_reason": "tool_use"}
    call = read_call(trace.span("anthropic.AsyncMessages.create", operation(MESSAGES, output)))
    assert (call.messages, call.tools) == (CONVERSATION, TOOLS)
    assert call.response == {"role": "assistant", "content": "I look.", "tool_calls": [CALLED]}
    assert (call.model, call.response_id, call.finish_reason) == ("served", "msg-1", "tool_calls")


def test_calls_that_raised_are_calls(trace) -> None:
    failed = TraceStatus(status_code="ERROR", description="too long")
    for name, given, expected in (
        ("openai.responses.create", RESPONSES, CONVERSATION),
        ("anthropic.Messages.create", MESSAGES, CONVERSATION),
        ("openai.chat.completions.create", {"messages": [ASKED], "tools": TOOLS}, [ASKED]),
    ):
        call = read_call(trace.span(name, operation(given, None), status=failed))
        assert (call.messages, call.tools, call.error) == (expected, TOOLS, "too long")
    assert read_call(trace.span("tool", {"weave.kind": "tool"}, status=failed)) is None


def test_what_only_the_providers_servers_know_is_passed_over(trace) -> None:
    search = {"type": "web_search_20260101", "name": "search"}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    said = {"role": "assistant", "content": [thought, found, {"type": "text", "text": "There."}]}
    given = {"messages": [ASKED, said], "tools": [search, *MESSAGES["tools"]]}
    call = read_call(trace.span("anthropic.Messages.create", operation(given, ANSWERED)))
    assert (call.messages[1:], call.tools) == ([{"role": "assistant", "content": "There."}], TOOLS)
    items = [ASKED, {"type": "web_search_call", "id": "ws_1"}, {"type": "reasoning", "summary": []}]
    tools = [{"type": "web_search"}, *RESPONSES["tools"]]
    output = {"object": "response", "status": "completed", "output": [{**said, "content": "Yes."}]}
    asked = operation({"input": items, "tools": tools}, output)
    call = read_call(trace.span("openai.responses.create", asked))
    assert (call.messages, call.tools) == ([ASKED], TOOLS)


@pytest.mark.parametrize(
    "wrong", [{"content": "x"}, {"role": "assistant", "content": [{"type": 7}]}]
)
def test_a_message_that_cannot_be_read_says_where(trace, wrong: dict) -> None:
    attributes = operation({"messages": [ASKED, wrong]}, ANSWERED)
    with pytest.raises(AdapterError, match=r"messages\.1"):
        read_call(trace.span("anthropic.Messages.create", attributes))
