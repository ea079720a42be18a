"""The parts of a chat completion that a translation makes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

ENDS = ("stop", "length", "tool_calls", "function_call", "content_filter")
"""Reasons to finish that end an answer, in OpenAI's words."""
_FINISH_REASONS = {
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "eos": "stop",
    "eos_token": "stop",
    "complete": "stop",
    "refusal": "content_filter",
    "safety": "content_filter",
    **{one: one for one in ENDS},
}
"""Words of TGI, Cohere, OpenTelemetry, Anthropic, Google, Mistral and the Responses API for those
of OpenAI."""


def tool_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call of a function; its arguments become JSON, where they are no text already."""
    function = {"name": name, "arguments": as_json(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def as_json(value: Any) -> str:
    """A text as it is, anything else as JSON; nothing is an empty object."""
    return value if isinstance(value, str) else json.dumps({} if value is None else value)


def as_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function whose definition stands beside its type."""
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": function}


def finish_reason(word: str | None) -> str | None:
    """Why an answer ended, in OpenAI's words; others stay as they are."""
    # Some write the name of an enumeration's member: ``FinishReason.MAX_TOKENS``.
    name = (word or "").rpartition(".")[2].lower().replace("-", "_")
    return word and _FINISH_REASONS.get(name, word)


def joined(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text is written as such, as most chat templates want it; more parts stay apart."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return list(parts)


def with_reasoning(message: dict[str, Any], thought: str) -> dict[str, Any]:
    """An assistant message that carries what was thought, for servers of either field."""
    return {**message, "reasoning": thought, "reasoning_content": thought} if thought else message
