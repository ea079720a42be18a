# pyright: standard
"""OpenTelemetry's GenAI events, in which older instrumentation has a call's messages.

``gen_ai.user.message`` and its like are messages, ``gen_ai.choice`` is an answer. Their contents
stand in attributes, or as JSON in one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agl_records.calls.sources.fields import decoded
from agl_records.calls.sources.parts import chat_messages

DETAILS = "gen_ai.client.inference.operation.details"
"""The newer event, with the attributes that may also stand on the span."""
_CHOICE = "gen_ai.choice"
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
BODY = "gen_ai.event.content"
"""Attribute with the contents as JSON."""


def is_genai_event(name: str) -> bool:
    """Whether an event of this name tells of a model call."""
    return name in (DETAILS, _CHOICE) or name in _ROLES


def event_fields(events: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The messages, the answer and its reason to finish, as far as events (name, values) say."""
    fields: dict[str, Any] = {}
    for name, values in events:
        values = {**values, **(decoded(values.get(BODY)) or {})}
        if name in _ROLES:
            content = decoded(values.get("content"))
            if name == "gen_ai.tool.message" and values.get("id"):
                values.update(tool_call_id=values["id"], name=None)
            message = {**values, "role": values.get("role") or _ROLES[name], "content": content}
            message["tool_calls"] = decoded(values.get("tool_calls"))
            fields.setdefault("messages", []).extend(chat_messages(message))
        elif name == _CHOICE and "response" not in fields:
            said = decoded(values.get("message", values.get("content")))
            said = said if isinstance(said, dict) else {"content": said}
            said.setdefault("tool_calls", decoded(values.get("tool_calls")))
            (fields["response"],) = chat_messages({"role": "assistant", **said})
            fields["finish_reason"] = values.get("finish_reason")
    return fields
