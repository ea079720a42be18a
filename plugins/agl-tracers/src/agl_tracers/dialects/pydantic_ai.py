# pyright: standard
"""Pydantic AI 1 with ``InstrumentationSettings(version=1)``: GenAI events in one attribute."""

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl_records.calls.sources import CALLS, Dialect
from agl_records.calls.sources.events import event_fields
from agl_records.calls.sources.fields import decoded, make_call, response_fields
from agl_records.calls.sources.genai import message_fields
from agl_records.training_data import ModelCall

_EVENTS, _NAME = "events", "event.name"


class PydanticAI(Dialect):
    """Pydantic AI 1: the events of a call as JSON under ``events``."""

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span has no such events or is an agent or a tool."""
        values = span.attributes
        events = decoded(values.get(_EVENTS))
        if not isinstance(events, list) or values.get(Key.OPERATION) not in CALLS:
            return None
        said = event_fields((event[_NAME], event) for event in events)
        return make_call(span, **{**message_fields(values), **said, **response_fields(values)})
