# pyright: standard
"""Vercel's AI SDK: the calls of a model that stand below ``ai.generateText`` and its like."""

from agl.types import Span
from agl_records.calls.sources import Dialect
from agl_records.calls.sources.fields import decoded, make_call, response_fields, text
from agl_records.calls.sources.parts import called
from agl_records.training_data import ModelCall
from agl_tracers.dialects.clients import listed_tools, request_fields

_MESSAGES, _TOOLS = "ai.prompt.messages", "ai.prompt.tools"
_TEXT, _CALLS, _OBJECT = "ai.response.text", "ai.response.toolCalls", "ai.response.object"
_FINISH = "ai.response.finishReason"
_INNER = ("doGenerate", "doStream")
"""Ends of the names of spans that are one request."""


class Vercel(Dialect):
    """Vercel's AI SDK: ``ai.prompt.messages``, ``ai.response.text`` and ``.toolCalls``."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span is of another kind; one around calls has no messages."""
        values = span.attributes
        if _MESSAGES not in values or not span.name.partition(" ")[0].endswith(_INNER):
            return None
        said, calls = values.get(_TEXT, values.get(_OBJECT)), decoded(values.get(_CALLS)) or []
        response = {"role": "assistant", "content": said or None}
        if calls:
            response["tool_calls"] = [called(call) for call in calls]
        fields = {
            **request_fields(decoded(values[_MESSAGES])),
            **response_fields(values),
            "tools": listed_tools(values.get(_TOOLS) or []),
            "response": response if said or calls else None,
            "finish_reason": (text(values.get(_FINISH)) or "").replace("-", "_") or None,
        }
        return make_call(span, **fields)
