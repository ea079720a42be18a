# pyright: standard
"""Model calls recorded as operations (Weave): a client's request and its answer.

Answers are read in the forms of chat completions, of the Responses API and of Anthropic's Messages.
"""

from collections.abc import Mapping
from typing import Any

from agl.semconv import LightningSpanAttributes
from agl.types import Span
from agl.utils.json_values import parse_json
from agl.utils.otel import attributes_under, from_attributes
from agl_records.calls.sources.fields import completion_fields, make_call, text, token_ids
from agl_records.dialects import messages, responses
from agl_records.dialects.fields import Fields
from agl_records.training_data import ModelCall

_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_KIND = "weave.kind"


def read(span: Span) -> ModelCall | None:
    """The call, or None when neither the output nor a failure is that of a model."""
    attributes = span.attributes
    if any(key.startswith(f"{_OUTPUT}.choices.") for key in attributes):
        return _chat_completion(span)
    if attributes.get(f"{_OUTPUT}.object") == "response":
        fields = _responses_request(_nested(attributes, _INPUT))
        return make_call(span, **fields, **_responses_answer(_nested(attributes, _OUTPUT)))
    if attributes.get(f"{_OUTPUT}.type") == "message" and f"{_OUTPUT}.stop_reason" in attributes:
        fields = _anthropic_request(_nested(attributes, _INPUT))
        return make_call(span, **fields, **_anthropic_answer(_nested(attributes, _OUTPUT)))
    if span.status.status_code == "ERROR" and attributes.get(_KIND) == "llm":
        return _failed_call(span)
    return None


def _chat_completion(span: Span) -> ModelCall:
    """The call of which the output is a chat completion."""
    output = _nested(span.attributes, _OUTPUT)
    request = _nested(span.attributes, _INPUT)
    first = output["choices"][0]
    for choice in output["choices"]:
        if isinstance(choice.get("logprobs"), str):
            choice["logprobs"] = parse_json(choice["logprobs"])
    message = first.get("message") or {}
    fields = completion_fields(output)
    for name in ("prompt_token_ids", "response_token_ids"):
        fields[name] = fields[name] or token_ids(span.attributes.get(name))
    return make_call(
        span,
        messages=_listed(request.get("messages")),
        tools=_listed(request.get("tools")),
        response=dict(message) if message else None,
        **fields,
    )


def _failed_call(span: Span) -> ModelCall | None:
    """The call that raised: there is a request, and no output to tell its form by."""
    request = _nested(span.attributes, _INPUT)
    if "input" in request:
        fields = _responses_request(request)
    elif span.name.startswith("anthropic."):
        fields = _anthropic_request(request)
    elif "messages" in request:
        fields = {
            "messages": _listed(request["messages"]),
            "tools": _listed(request.get("tools")),
        }
    else:
        return None
    return make_call(span, **fields, model=text(request.get("model")))


def _responses_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to the Responses API."""
    fields = Fields(request, is_recorded=True)
    said, tools = responses.conversation(fields, fields.get("instructions", str))
    return {"messages": said, "tools": [tool.as_chat() for tool in tools]}


def _responses_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of the Responses API."""
    said = responses.item_messages(Fields(answer, is_recorded=True).objects("output"), [])
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for each in said:
        message.update({key: value for key, value in each.items() if value})
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "response": message if said else None,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": "length" if answer.get("status") == "incomplete" else finish,
    }


def _anthropic_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to Anthropic's Messages."""
    said, tools = messages.conversation(Fields(request, is_recorded=True))
    return {"messages": said, "tools": tools}


def _anthropic_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of Anthropic's Messages."""
    said = {"role": "assistant", "content": answer.get("content")}
    (message,) = messages.message(Fields(said, is_recorded=True), set())
    is_empty = message["content"] is None and "tool_calls" not in message
    return {
        "response": None if is_empty else message,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": text(answer.get("stop_reason")),
    }


def _listed(value: Any) -> list[Any]:
    """The value, or nothing where it is no list."""
    return value if isinstance(value, list) else []


def _nested(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return from_attributes(attributes_under(attributes, prefix))
