"""Chat messages of each model call."""

from collections.abc import Sequence
from typing import Any, TypedDict, cast

from agentlightning._names import refusing
from agl.types import Span
from agl_adapters import TraceToMessages as _TraceToMessages


class OpenAIMessages(TypedDict):
    """What OpenAI's fine-tuning takes: messages, and the tools that were there."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@refusing({"adapt() has them in the messages": "get_tool_calls"})
class TraceToMessages(_TraceToMessages):
    """agl's, with exactly ``messages`` and ``tools`` in each entry."""

    def adapt(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, source: Sequence[Span], /
    ) -> list[OpenAIMessages]:
        """Conversations; see agl's ``TraceToMessages``."""
        return [
            OpenAIMessages(
                messages=[_without_empty_content(dict(m)) for m in cast(Any, entry)["messages"]],
                tools=cast(Any, entry).get("tools"),
            )
            for entry in super().adapt(source)
        ]


def _without_empty_content(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls") and message.get("content") == "":
        message["content"] = None
    return message
