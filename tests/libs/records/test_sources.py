"""Whoever wrote the span, the call reads the same."""

import json

import pytest

from agl.errors import AdapterError
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Span
from agl_records.calls.reader import model_calls
from agl_records.calls.sources import dialects, read_call

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
LOOK = {"name": "look", "arguments": '{"room": "kitchen"}'}
CALL = {"id": "call_1", "type": "function", "function": LOOK}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
PARAMETERS = {"type": "object", "properties": {"room": {"type": "string"}}}
LOOKS = {"name": "look", "description": "Look", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": LOOKS}
IDS = {Key.PROMPT_TOKEN_IDS: [1, 2, 3], Key.RESPONSE_TOKEN_IDS: [4, 5]}

GATEWAY = {
    Key.OPERATION: "chat",
    Key.INPUT_MESSAGES: json.dumps(MESSAGES),
    Key.OUTPUT_MESSAGES: json.dumps([ANSWER]),
    Key.TOOL_DEFINITIONS: json.dumps([TOOL]),
    Key.RESPONSE_ID: "chatcmpl-1",
    Key.RESPONSE_MODEL: "qwen",
    Key.FINISH_REASONS: ["tool_calls"],
    Key.RESPONSE_LOGPROBS: [-0.5, -0.25],
    **IDS,
}
LOOKED = {"type": "tool_call", "id": "call_1", "name": "look", "arguments": {"room": "kitchen"}}
SAID = {"role": "assistant", "parts": [LOOKED]}
PARTS = {
    Key.OPERATION: "chat",
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    Key.INPUT_MESSAGES: json.dumps(
        [{"role": "user", "parts": [{"type": "text", "content": "Where is it?"}]}]
    ),
    Key.OUTPUT_MESSAGES: json.dumps([{**SAID, "finish_reason": "tool_call"}]),
    Key.TOOL_DEFINITIONS: json.dumps([{"type": "function", **TOOL["function"]}]),
    Key.RESPONSE_ID: "chatcmpl-1",
    Key.RESPONSE_MODEL: "qwen",
    Key.FINISH_REASONS: ["tool_calls"],
}


@pytest.mark.parametrize(
    ("name", "attributes", "lacks_tokens"),
    [("openai.chat.completion", GATEWAY, False), ("chat qwen", PARTS, True)],
    ids=["gateway", "parts"],
)
def test_every_way_of_writing_gives_the_same_call(trace, name, attributes, lacks_tokens):
    plain = {str(key): value for key, value in attributes.items()}
    call = read_call(trace.span(name, plain))
    tokens = {"prompt_token_ids": [1, 2, 3], "response_token_ids": [4, 5]}
    expected = {
        **{"messages": MESSAGES, "tools": [TOOL], "response": ANSWER, "model": "qwen"},
        **{"response_id": "chatcmpl-1", "finish_reason": "tool_calls"},
        **({} if lacks_tokens else {**tokens, "response_logprobs": [-0.5, -0.25]}),
    }
    assert {field: getattr(call, field) for field in expected} == expected
    assert (call.rollout_id, call.attempt_id, call.sequence_id) == ("ro-1", "at-1", 1)


def test_images_and_tool_answers_come_out_of_parts(trace):
    parts = [
        {"type": "text", "content": "What is this?"},
        {"type": "uri", "modality": "image", "uri": "http://x/cat.png"},
        {"type": "blob", "mime_type": "image/jpeg", "content": "QUJD"},
        {"type": "image", "image": "QUJD", "mediaType": "image/jpeg"},
        {"type": "image", "source": {"media_type": "image/jpeg", "data": "QUJD"}},
    ]
    answer = {"type": "tool_call_response", "id": "call_1", "response": {"found": True}}
    more = {"type": "text", "content": "Go on."}
    messages = [{"role": "user", "parts": parts}, {"role": "user", "parts": [answer, more]}]
    call = read_call(trace.span("chat", {"gen_ai.input.messages": json.dumps(messages)}))
    user, tool, last = call.messages
    assert last == {"role": "user", "content": "Go on."}
    assert [part["type"] for part in user["content"]] == ["text", *["image_url"] * 4]
    urls = [part["image_url"]["url"] for part in user["content"][1:]]
    assert urls == ["http://x/cat.png", *["data:image/jpeg;base64,QUJD"] * 3]
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": '{"found": true}'}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("agent", {"agent.name": "writer"}),
        ("invoke_agent w", {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"}),
        ("execute_tool", {"gen_ai.operation.name": "execute_tool", "gen_ai.input.messages": "[]"}),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": 1.0}),
    ],
)
def test_agents_tools_and_rewards_are_no_calls(trace, name, attributes):
    assert read_call(trace.span(name, attributes)) is None


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{"},
        {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '{"role": "user"}'},
        {"gen_ai.input.messages": '[{"content": "no role"}]'},
        {"gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text"}]}]'},
    ],
)
def test_an_unreadable_call_is_an_error_that_names_the_span(trace, attributes):
    span = trace.span("openai.chat.completion", attributes)
    with pytest.raises(AdapterError, match=f"span '{span.span_id}'"):
        read_call(span)


def test_a_dialect_that_does_not_work_is_named_and_others_read_on(install, trace, caplog):
    code = """
        from agl_records import Dialect

        class Lacks(Dialect):
            pass

        class Raises(Dialect):
            def __init__(self):
                raise ValueError("no licence")

            def read(self, span): ...

        class Other:
            def read(self, span): ...

        class Stumbles(Dialect):
            def read(self, span):
                return span.attributes["acme.asked"] if span.name == "acme" else None
    """
    names = ("Lacks", "Raises", "Other", "Stumbles")
    offers = {"agl.dialects": {name.lower(): f"agl_x_mod:{name}" for name in names}}
    install("agl-x", {"agl_x_mod.py": code}, offers)
    dialects.cache_clear()
    try:
        assert read_call(trace.span("openai.chat.completion", GATEWAY)).messages == MESSAGES
        with pytest.raises(AdapterError, match="that 'Stumbles' cannot read: KeyError"):
            read_call(trace.span("acme", {}))
    finally:
        dialects.cache_clear()
    said = "\n".join(caplog.messages)
    assert "dialect 'lacks' (plugin 'agl-x') does not load: class Lacks lacks read()" in said
    assert "dialect 'raises' (plugin 'agl-x') cannot be built: ValueError: no licence" in said
    assert "dialect 'other' (plugin 'agl-x'): expected a Dialect, got the class Other" in said


@pytest.mark.plugins
def test_a_call_recorded_by_gateway_and_tracer_counts_once_with_ids_and_agent(trace):
    agent = trace.span("agent", {"agent.name": "writer"}, start_time=100.0, end_time=200.0)
    trace.flat("c-1", parent_id=agent.span_id)
    trace.gateway([1], [2], response_id="c-1")
    (call,) = model_calls(trace.spans)
    assert (call.prompt_token_ids, call.agent_name) == ([1], "writer")
    assert call.call_id == trace.spans[2].span_id


@pytest.mark.plugins
def test_a_backend_with_one_id_for_all_answers_loses_no_call(trace):
    for number in range(3):
        trace.gateway([1], [number], response_id="same")
    assert [call.response_token_ids for call in model_calls(trace.spans)] == [[0], [1], [2]]
    for _ in range(3):
        trace.flat("same")
    assert len(model_calls(trace.spans)) == 3


def test_gateway_spans_find_their_agent_by_time(trace):
    for name, start in (("writer", 0.0), ("critic", 20.0)):
        trace.span("agent", {"agent.name": name}, start_time=start, end_time=start + 10)
        trace.gateway([1], [2], start_time=start + 1, end_time=start + 2)
    assert [call.agent_name for call in model_calls(trace.spans)] == ["writer", "critic"]


@pytest.mark.parametrize("has_gateway", [False, True])
def test_a_frameworks_span_without_id_is_one_call_with_the_clients_span_in_it(has_gateway):
    """As OpenInference records LangChain, smolagents and the Agents SDK."""
    outer = {k: v for k, v in PARTS.items() if k != Key.RESPONSE_ID}
    ids = {"rollout_id": "ro-1", "attempt_id": "at-1"}
    spans = [
        Span.from_attributes(name="generation", attributes=outer, span_id="a", **ids),
        Span.from_attributes(name="chat", attributes=PARTS, span_id="b", parent_id="a", **ids),
    ]
    if has_gateway:
        attributes = {**GATEWAY, Key.RESPONSE_ID: PARTS[Key.RESPONSE_ID]}
        spans.append(
            Span.from_attributes(name=MODEL_CALL_SPAN, attributes=attributes, span_id="c", **ids)
        )
    (call,) = model_calls(spans)
    assert call.response_id == PARTS[Key.RESPONSE_ID]
    assert bool(call.prompt_token_ids) == has_gateway
