"""A model call as chat messages: what the model was given, and what it answered."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from agl.errors import AdapterError
from agl.types import Span
from agl_records.dialects.chat import tool_call
from agl_records.training_data import ModelCall

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ChatMessages(TypedDict):
    """One conversation: what the model was given, and what it answered."""

    messages: list[dict[str, Any]]
    """OpenAI chat messages; the last is the answer, where there was one."""
    tools: list[dict[str, Any]] | None
    """OpenAI tool definitions, or None."""
    metadata: dict[str, Any]
    """``rollout_id``, ``attempt_id``, ``span_id``, ``sequence_id``, ``response_id``,
    ``agent_name``, ``model``, ``finish_reason``, ``error``; and ``choice`` where the call had
    several answers: which of them was used, None where that is not known."""


def conversation(call: ModelCall, tool_spans: Sequence[Span] = ()) -> ChatMessages:
    """The entry of one call.

    Args:
        call: The call.
        tool_spans: Those of the tools that its answer called.

    Raises:
        AdapterError: A message has no role that exists.
    """
    messages = [_checked(message, call) for message in call.messages]
    if call.response is not None:
        answer = _checked({"role": "assistant", **call.response}, call)
        if tool_spans and not answer.get("tool_calls"):
            answer["tool_calls"] = [_tool_call(span) for span in tool_spans]
        messages.append(answer)
    return {
        "messages": messages,
        "tools": call.tools or None,
        "metadata": {
            "rollout_id": call.rollout_id,
            "attempt_id": call.attempt_id,
            "span_id": call.call_id,
            "sequence_id": call.sequence_id,
            "response_id": call.response_id,
            "agent_name": call.agent_name,
            "model": call.model,
            "finish_reason": call.finish_reason,
            "error": call.error,
            **({"choice": call.choice} if call.choices else {}),
        },
    }


def _checked(message: Mapping[str, Any], call: ModelCall) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise AdapterError(
            f"span {call.call_id!r} of rollout {call.rollout_id!r}, attempt {call.attempt_id!r}: a "
            f"message has the role {role!r}; expected one of {', '.join(ROLES)}"
        )
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def tool_spans_of(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Id of a model call -> the spans of the tools below it."""
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.parent_id and "tool.name" in span.attributes:
            children[span.parent_id].append(span)
    return children


def _tool_call(span: Span) -> dict[str, Any]:
    attributes = span.attributes
    call_id = attributes.get("tool.call.id") or attributes.get("tool.id") or span.span_id
    arguments = str(attributes.get("tool.parameters") or "{}")
    return tool_call(str(call_id), str(attributes["tool.name"]), arguments)
