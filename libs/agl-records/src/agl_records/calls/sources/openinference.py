# pyright: standard
"""OpenInference's keys (Phoenix, Arize): ``llm.input_messages.N.message.*`` and their like.

The client's whole answer stands as JSON under ``output.value``; token ids are taken from there.
"""

from collections.abc import Mapping
from typing import Any

from agl.types import Span
from agl_records.calls.sources import Dialect
from agl_records.calls.sources.fields import (
    chat_message,
    completion_fields,
    decoded,
    from_json_text,
    make_call,
    numbered,
    text,
    token_fields,
)
from agl_records.dialects.chat import tool_call
from agl_records.training_data import ModelCall

KIND = "openinference.span.kind"


class OpenInference(Dialect):
    """OpenInference's conventions (Phoenix, Arize): ``llm.input_messages.0.message.role``."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span is of another kind."""
        attributes = span.attributes
        if attributes.get(KIND) != "LLM":
            return None
        answers = [_message(item) for item in numbered(attributes, "llm.output_messages")]
        fields: dict[str, Any] = {
            **token_fields(attributes),
            "model": text(attributes.get("llm.model_name")),
            "agent_name": text(attributes.get("agent.name")),
            "finish_reason": text(attributes.get("llm.finish_reason")),
        }
        fields.update({name: value for name, value in _answer(attributes).items() if value})
        return make_call(
            span,
            messages=[_message(item) for item in numbered(attributes, "llm.input_messages")],
            tools=[
                from_json_text(item["tool"]["json_schema"])
                for item in numbered(attributes, "llm.tools")
            ],
            response=answers[0] if answers else None,
            **fields,
        )


def _answer(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the client's answer has beside the message, where it is there."""
    output = decoded(attributes.get("output.value"))
    if not isinstance(output, dict):
        return {}  # or cut off by a limit on the length of attributes
    if output.get("choices"):
        return completion_fields(output)
    return {"response_id": text(output.get("id"))}  # of Responses, and of Anthropic's messages


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    message = item.get("message") or {}
    parts = [part["message_content"] for part in message.get("contents") or ()]
    # Calls of tools stand under ``tool_calls`` as well.
    shown = [_part(part) for part in parts if part.get("type") != "tool_use"]
    calls = [_tool_call(call["tool_call"]) for call in message.get("tool_calls") or ()]
    return chat_message(message, shown or message.get("content"), calls)


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": part["image"]["image"]["url"]}}
    raise ValueError(f"expected a part of type text or image, got {part.get('type')!r}")


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return tool_call(call.get("id") or "", function["name"], function.get("arguments") or "{}")
