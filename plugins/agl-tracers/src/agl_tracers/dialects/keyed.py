# pyright: standard
"""``KeyedDialect``: request and answer of a call as JSON, each under a key of its span."""

from typing import Any, ClassVar

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl.utils.json_values import parse_json
from agl_records.calls.sources import Dialect
from agl_records.calls.sources.fields import decoded, make_call, response_fields, text
from agl_records.training_data import ModelCall
from agl_tracers.dialects.clients import call_fields, listed_tools


class KeyedDialect(Dialect):
    """A table of keys is all that such a dialect is."""

    kind: ClassVar[tuple[str, ...]] = ()
    """A key, and those of its values that only model calls have; none: whatever has a request."""
    request: ClassVar[str]
    answer: ClassVar[str]
    model: ClassVar[str] = Key.RESPONSE_MODEL.value

    def read(self, span: Span) -> ModelCall | None:
        """The call, or None when the span is of another kind, or has its messages elsewhere."""
        values = span.attributes
        if self.request not in values or Key.INPUT_MESSAGES in values:
            return None
        if self.kind and _plain(values.get(self.kind[0])) not in self.kind[1:]:
            return None
        fields = response_fields(values)
        fields |= call_fields(_plain(values[self.request]), _plain(values.get(self.answer)))
        if not fields.get("tools") and Key.TOOL_DEFINITIONS in values:
            fields["tools"] = listed_tools(decoded(values[Key.TOOL_DEFINITIONS]))
        fields["model"] = text(values.get(self.model)) or fields["model"]
        return make_call(span, **fields)


def _plain(value: Any) -> Any:
    """What JSON says, a text in quotes included; else the value."""
    if isinstance(value, str) and value[:1] == '"':
        try:
            return parse_json(value)
        except ValueError:
            return value  # a text that begins with a quotation
    return decoded(value)
