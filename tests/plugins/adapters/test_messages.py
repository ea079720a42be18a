import json

import pytest
from pydantic import TypeAdapter

from agl.errors import AdapterError
from agl_adapters import TraceToMessages

openai_types = pytest.importorskip("openai.types.chat")

CALL = {"id": "call_1", "name": "look", "arguments": '{"room": "kitchen"}'}
TOOL_CALLS = {f"gen_ai.completion.0.tool_calls.0.{key}": CALL[key] for key in CALL}
SCHEMA = '{"type": "object", "properties": {}}'
LOOK = {"name": "look", "description": "Look", "parameters": SCHEMA}
FUNCTIONS = {f"gen_ai.request.functions.0.{key}": LOOK[key] for key in LOOK}


def assert_accepted_by_openai(entry: dict) -> None:
    messages = TypeAdapter(list[openai_types.ChatCompletionMessageParam])
    tools = TypeAdapter(list[openai_types.ChatCompletionToolParam])
    assert len(messages.validate_python(entry["messages"], strict=False)) == len(entry["messages"])
    tools.validate_python(entry["tools"] or [])
    json.dumps(entry)


def test_a_conversation_with_tools_is_what_openai_takes(trace) -> None:
    trace.flat("c-1", extra={**TOOL_CALLS, **FUNCTIONS})
    called = {f"1.tool_calls.0.{key}": value for key, value in {**CALL, "arguments": "{}"}.items()}
    said = {"1.role": "assistant", **called, "2.role": "tool", "2.tool_call_id": "call_1"}
    said["2.content"] = "empty"
    trace.flat("c-2", extra={**FUNCTIONS, **{f"gen_ai.prompt.{key}": said[key] for key in said}})
    first, second = TraceToMessages().adapt(trace.spans)
    for entry in (first, second):
        assert_accepted_by_openai(entry)
    assert [m["role"] for m in first["messages"]] == ["user", "assistant"]
    (call,) = first["messages"][-1]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"room": "kitchen"}'}
    assert first["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert second["messages"][2]["tool_call_id"] == "call_1"


def test_metadata_say_where_an_entry_comes_from(trace) -> None:
    agent = trace.span("agent", {"agent.name": "writer"})
    call = trace.flat("c-1", parent_id=agent.span_id)
    (entry,) = TraceToMessages().adapt(trace.spans)
    assert entry["tools"] is None
    assert entry["metadata"] == {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "span_id": call.span_id,
        "sequence_id": 2,
        "response_id": "c-1",
        "agent_name": "writer",
        "model": "echo",
        "finish_reason": "stop",
        "error": None,
    }


def test_tool_calls_are_taken_from_spans_below_when_the_answer_has_none(trace) -> None:
    call = trace.flat("c-1")
    tool = {"tool.name": "look", "tool.parameters": '{"room": 1}', "tool.call.id": "call_9"}
    trace.span("tool_call.look", tool, parent_id=call.span_id)
    other = trace.flat("c-2", extra=TOOL_CALLS)
    trace.span("tool_call.look", tool, parent_id=other.span_id)
    first, second = TraceToMessages().adapt(trace.spans)
    assert_accepted_by_openai(first)
    assert [c["id"] for c in first["messages"][-1]["tool_calls"]] == ["call_9"]
    assert [c["id"] for c in second["messages"][-1]["tool_calls"]] == ["call_1"]


def test_a_failed_call_has_no_answer_and_says_why(trace) -> None:
    trace.gateway(error="backend down")
    (entry,) = TraceToMessages().adapt(trace.spans)
    assert [m["role"] for m in entry["messages"]] == ["user"]
    assert entry["metadata"]["error"] == "backend down"


def test_an_unknown_role_is_an_error_that_names_the_span(trace) -> None:
    span = trace.gateway([1], [2], messages=[{"role": "robot", "content": "beep"}])
    with pytest.raises(AdapterError, match=f"span '{span.span_id}'.*'robot'"):
        TraceToMessages().adapt(trace.spans)
