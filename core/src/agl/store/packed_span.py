"""A span that stays the JSON it came as, for a server that only passes it on to its store."""

from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

from agl.types import Span
from agl.types.spans import UNSAID, Writer
from agl.utils.json_values import json_of


class PackedSpan(NamedTuple):
    """A valid span that nobody has looked into: what a store sorts by, and the whole as JSON."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Counts; the one in ``body`` does not."""
    span_id: str
    trace_id: str
    parent_id: str | None
    name: str
    start_time: float | None
    end_time: float | None
    body: str
    """JSON of a ``Span``; whoever packs vouches for it, and for what ``check_span`` asks."""
    writer: Writer | None = None
    """As in ``body``."""
    attributes: Mapping[str, Any] = {}
    """Those of ``body``, for the store to see a reward among them; it keeps none of them."""

    def with_field(self, field: str) -> "PackedSpan":
        """A copy with one more JSON field; readers take it, even if the body has one already."""
        return self._replace(body=f"{self.body[:-1]},{field}}}")


AnySpan = Span | PackedSpan
indexed_fields = attrgetter(*PackedSpan._fields[:9])
"""Of an object with the fields of a span: all of a ``PackedSpan`` that comes before its body."""
indexed_items = cast("itemgetter[Any]", itemgetter(*PackedSpan._fields[:9]))
"""The same of a dictionary."""


def packed(span: AnySpan) -> PackedSpan:
    """A span as a store keeps it, which nobody can change; an error of ``json_of`` if it cannot."""
    if isinstance(span, PackedSpan):
        return PackedSpan(*span[:-1])  # without its attributes
    # The span was validated when it was made; its fields are written as they stand.
    fields = {**span.__dict__, **(span.model_extra or {})}
    fields = {name: value for name, value in fields.items() if value or name not in UNSAID}
    body = json_of(fields, f"span {span.span_id!r} of attempt {span.attempt_id!r}")
    return PackedSpan(*indexed_fields(span), body=body, writer=span.writer)


def span_of(body: str | bytes, sequence_id: int) -> Span:
    """The span of a packed body, with its number."""
    span = Span.model_validate_json(body)
    if span.sequence_id == sequence_id:
        return span
    return span.changed(sequence_id=sequence_id)


def unpacked(spans: Iterable[AnySpan]) -> list[Span]:
    """All as spans."""
    return [s if isinstance(s, Span) else span_of(s.body, s.sequence_id) for s in spans]


def late(span: AnySpan, attempt_end: float | None = None) -> AnySpan:
    """Mark a span as late, unless an algorithm wrote it or its call ended in time."""
    is_before = 0.0 < (span.end_time or 0.0) <= (attempt_end or 0.0)
    if span.writer == "algorithm" or (span.writer == "gateway" and is_before):
        return span
    if isinstance(span, PackedSpan):
        return span.with_field('"late":true')._replace(attributes={})
    return span.changed(late=True)
