# pyright: standard
"""OpenTelemetry's GenAI conventions, agl-gateway's too: messages as JSON, of typed parts.

``[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]`` becomes OpenAI's
``[{"role": "user", "content": "Hi"}]``; messages in OpenAI's form are taken as they are. They stand
in the span's attributes or in those of its events.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from agl.algorithm.gateway import is_gateway_span
from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl_records.calls.sources import CALLS, Dialect
from agl_records.calls.sources.events import DETAILS, event_fields
from agl_records.calls.sources.fields import (
    checked_role,
    from_json_text,
    listed_choices,
    make_call,
    response_fields,
    text,
    token_fields,
)
from agl_records.calls.sources.parts import chat_messages
from agl_records.dialects.chat import as_chat
from agl_records.training_data import ModelCall

_SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
_BARE = ("gen_ai.request.", "gen_ai.response.")
"""Keys of calls whose messages are not recorded, or somewhere else."""


class GenAI(Dialect):
    """OpenTelemetry's GenAI conventions: attributes, and events of both forms."""

    is_standard: ClassVar[bool] = True

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span has none of these keys or is an agent or a tool."""
        attributes, is_gateways = span.attributes, is_gateway_span(span)
        for event in span.events:
            if event.name == DETAILS:
                attributes = {**attributes, **event.attributes}
        operation = attributes.get(Key.OPERATION)
        has_messages = Key.INPUT_MESSAGES in attributes or Key.OUTPUT_MESSAGES in attributes
        is_call = operation in CALLS or (
            operation is None and (has_messages or any(k.startswith(_BARE) for k in attributes))
        )
        if not is_gateways and not is_call:
            return None
        fields = message_fields(attributes)
        if span.events and not has_messages:
            said = event_fields((event.name, event.attributes) for event in span.events)
            fields.update((name, value) for name, value in said.items() if value)
        said = response_fields(attributes)
        # A gateway knows that there was no reason to finish; others do not say it.
        fields |= {name: v for name, v in said.items() if v or (is_gateways and v is not None)}
        served = fields.get("requested_model") if is_gateways else None
        return make_call(span, served_model=served, **fields, **token_fields(attributes))


def message_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Messages, tools and answer in OpenAI's form."""
    messages: list[dict[str, Any]] = []
    instructions = _loaded(attributes, _SYSTEM_INSTRUCTIONS)
    if instructions:
        messages.extend(_messages({"role": "system", "parts": instructions}))
    for message in _loaded(attributes, Key.INPUT_MESSAGES):
        messages.extend(_messages(message))
    said = [
        one if isinstance(one, dict) else {} for one in _loaded(attributes, Key.OUTPUT_MESSAGES)
    ]
    # An answer is an assistant's also where its server gives no role.
    of_each = [
        _messages({**message, "role": text(message.get("role")) or "assistant"}) if message else []
        for message in said
    ]
    answers = [chat for chats in of_each for chat in chats]
    return {
        # Strands has it nowhere else.
        "finish_reason": said[0].get("finish_reason") if said and said[0] else None,
        "messages": messages,
        "tools": [_chat_tool(tool) for tool in _loaded(attributes, Key.TOOL_DEFINITIONS)],
        "response": answers[0] if answers else None,
        "choices": listed_choices(attributes, [next(iter(chats), None) for chats in of_each]),
    }


def _messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message of typed parts in OpenAI's form; one that is in that form is taken as it is."""
    checked_role(message)
    return chat_messages(message) if "parts" in message else [dict(message)]


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form, where its definition stands under ``function``."""
    if "function" in tool or tool.get("type", "function") != "function":
        return dict(tool)
    return as_chat(tool)


def _loaded(attributes: Mapping[str, Any], key: str) -> list[Any]:
    value = from_json_text(attributes.get(key))
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key}: expected a JSON list, got {str(value)[:80]}")
    return value
