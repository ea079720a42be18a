"""Spans that stay the JSON they came as, for a server that only passes them on to its store."""

from collections.abc import Iterable
from typing import NamedTuple

from agl.types import Span


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
    """JSON of a ``Span``; whoever packs vouches for it."""

    def unpack(self) -> Span:
        """The span."""
        return span_of(self.body, self.sequence_id)


def span_of(body: str, sequence_id: int) -> Span:
    """The span of a packed body, with its number."""
    span = Span.model_validate_json(body)
    if span.sequence_id == sequence_id:
        return span
    return span.model_copy(update={"sequence_id": sequence_id})


def unpacked(spans: "Iterable[Span | PackedSpan]") -> list[Span]:
    """All as spans."""
    return [span if isinstance(span, Span) else span.unpack() for span in spans]
