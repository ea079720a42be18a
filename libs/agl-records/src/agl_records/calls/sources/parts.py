# pyright: standard
"""OpenTelemetry's current GenAI keys, agl-gateway's too: messages as JSON, of typed parts.

``[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]`` becomes OpenAI's
``[{"role": "user", "content": "Hi"}]``; messages in OpenAI's form are taken as they are.
"""

from collections.abc import Mapping
from typing import Any

from agl.algorithm.gateway import is_gateway_span
from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl.utils.json_values import parse_json
from agl_records.calls.sources.fields import (
    CALLS,
    chat_message,
    checked_role,
    listed_choices,
    make_call,
    response_fields,
    token_fields,
)
from agl_records.dialects.chat import as_chat, as_json, joined, tool_call
from agl_records.training_data import ModelCall

_SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"


def read(span: Span) -> ModelCall | None:
    """The call, or None when the span has none of these keys or is an agent or a tool."""
    attributes = span.attributes
    is_gateways = is_gateway_span(span)
    operation = attributes.get(Key.OPERATION)
    has_messages = Key.INPUT_MESSAGES in attributes or Key.OUTPUT_MESSAGES in attributes
    is_flat = not has_messages and any(key.startswith("gen_ai.prompt.") for key in attributes)
    is_call = operation in CALLS or (operation is None and has_messages)
    if not is_gateways and (is_flat or not is_call):
        return None
    response = response_fields(attributes)
    return make_call(
        span,
        served_model=response["requested_model"] if is_gateways else None,
        **message_fields(attributes),
        **response,
        **token_fields(attributes),
    )


def message_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Messages, tools and answer in OpenAI's form."""
    messages: list[dict[str, Any]] = []
    instructions = _loaded(attributes, _SYSTEM_INSTRUCTIONS)
    if instructions:
        messages.extend(_chat_messages({"role": "system", "parts": instructions}))
    for message in _loaded(attributes, Key.INPUT_MESSAGES):
        messages.extend(_chat_messages(message))
    said = _loaded(attributes, Key.OUTPUT_MESSAGES)
    of_each = [_chat_messages(message) if message else [] for message in said]
    answers = [chat for chats in of_each for chat in chats]
    return {
        "messages": messages,
        "tools": [_chat_tool(tool) for tool in _loaded(attributes, Key.TOOL_DEFINITIONS)],
        "response": answers[0] if answers else None,
        "choices": listed_choices(attributes, [next(iter(chats), None) for chats in of_each]),
    }


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One message in OpenAI's form; each answer of a tool is a message of its own."""
    checked_role(message)
    if "parts" not in message:
        return [dict(message)]
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for part in message["parts"]:
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(tool_call(part.get("id") or "", part["name"], part.get("arguments")))
        elif kind == "tool_call_response":
            answers.append(_tool_answer(part))
        elif kind != "reasoning":
            content.append(_content_part(part))
    if answers:
        return answers
    # LiteLLM has these beside the parts.
    calls = calls or message.get("tool_calls") or []
    return [chat_message(message, joined(content) if content else None, calls)]


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form, where its definition stands under ``function``."""
    if "function" in tool or tool.get("type", "function") != "function":
        return dict(tool)
    return as_chat(tool)


def _tool_answer(part: Mapping[str, Any]) -> dict[str, Any]:
    answer = part.get("response", part.get("result"))
    return {
        "role": "tool",
        "tool_call_id": part.get("id") or "",
        "content": "" if answer is None else as_json(answer),
    }


def _content_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        # LiteLLM leaves some parts in OpenAI's form.
        return {"type": "text", "text": part["content"] if "content" in part else part["text"]}
    if kind == "image_url":
        return dict(part)
    if kind == "uri":
        return {"type": "image_url", "image_url": {"url": part["uri"]}}
    if kind == "blob":
        url = f"data:{part.get('mime_type') or 'image/png'};base64,{part['content']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise ValueError(f"expected a part of type text, uri, blob or tool_call, got {kind!r}")


def _loaded(attributes: Mapping[str, Any], key: str) -> list[Any]:
    value = attributes.get(key)
    if isinstance(value, str):
        value = parse_json(value) if value else None
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key}: expected a JSON list, got {str(value)[:80]}")
    return value
