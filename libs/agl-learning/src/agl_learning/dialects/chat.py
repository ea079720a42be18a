"""The parts of a chat completion that a translation makes."""

from collections.abc import Sequence
from typing import Any


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function; its arguments are JSON."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def joined(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text is written as such, as most chat templates want it; more parts stay apart."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return list(parts)


def with_reasoning(message: dict[str, Any], thought: str) -> dict[str, Any]:
    """An assistant message that carries what was thought, for servers of either field."""
    return {**message, "reasoning": thought, "reasoning_content": thought} if thought else message
