"""The older flat keys ``gen_ai.prompt.N.*`` and ``gen_ai.completion.N.*`` (AgentOps, OpenLLMetry).

0.3 adds token ids to them, under ``prompt_token_ids`` and ``response_token_ids``.
"""

import json
from collections.abc import Mapping
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import ModelCall, Span
from agl.utils.otel import filter_attributes, unflatten_attributes
from agl_adapters.sources.fields import (
    CALLS,
    checked_role,
    make_call,
    response_fields,
    token_fields,
)

PREFIXES = ("gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request.", "gen_ai.response.")
CONTENT_TYPES = ("text", "image_url", "input_audio", "file", "refusal")


def read(span: Span) -> ModelCall | None:
    """The call, or None when the span has no such key or is an agent or a tool."""
    attributes = span.attributes
    if not any(key.startswith(PREFIXES) for key in attributes):
        return None
    if attributes.get(Key.OPERATION, CALLS[0]) not in CALLS:
        return None
    return make_call(span, **call_fields(span.attributes))


def call_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that these keys say about a call."""
    completions = _indexed(attributes, "gen_ai.completion")
    fields = response_fields(attributes)
    if completions:
        fields["finish_reason"] = completions[0].get("finish_reason") or fields["finish_reason"]
    return {
        **fields,
        **token_fields(attributes),
        "messages": [_message(item) for item in _indexed(attributes, "gen_ai.prompt")],
        "tools": tools(attributes, "gen_ai.request.functions"),
        "response": _message({"role": "assistant", **completions[0]}) if completions else None,
    }


def tools(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The tool definitions under ``<prefix>.N.*``, in OpenAI's form."""
    return [_tool(item) for item in _indexed(attributes, prefix)]


def _indexed(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    found = filter_attributes(attributes, prefix)
    items = unflatten_attributes({key: value for key, value in found.items() if key})
    return [items[index] for index in sorted(items, key=int)]


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": checked_role(item),
        "content": _content(item.get("content")),
    }
    for key in ("name", "tool_call_id"):
        if item.get(key):
            message[key] = item[key]
    calls = [_tool_call(call) for call in _values(item.get("tool_calls"))]
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return message


def _content(value: Any) -> Any:
    # Content of several parts is written as the JSON text of the list.
    if isinstance(value, str) and value.startswith("[{"):
        try:
            parts = json.loads(value)
        except ValueError:
            return value
        if all(isinstance(part, dict) and part.get("type") in CONTENT_TYPES for part in parts):
            return parts
    return "" if value is None else value


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        },
    }


def _tool(item: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(item)
    if isinstance(function.get("parameters"), str):
        function["parameters"] = json.loads(function["parameters"])
    return {"type": "function", "function": function}


def _values(items: Any) -> list[Any]:
    if not items:
        return []
    if isinstance(items, Mapping):
        return [items[index] for index in sorted(items, key=int)]
    return list(items)
