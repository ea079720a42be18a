"""Spans that stay the JSON they came as, for a server that only passes them on to its store.

Also what no store keeps of any span, packed or not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from agl.errors import InvalidRecordError
from agl.types import Span

MAX_SEQUENCE_ID = 1 << 53
"""Larger numbers are not the same everywhere."""


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


def check_span(span: Span) -> None:
    """Refuse what JSON or a database could not give back as it was.

    Raises:
        InvalidRecordError: A number that is not finite, an id with a NUL, or too large a
            ``sequence_id``.
    """
    if span.sequence_id > MAX_SEQUENCE_ID:
        raise _refused(span, "sequence_id", span.sequence_id, f"at most {MAX_SEQUENCE_ID}")
    if "\0" in span.span_id or "\0" in span.trace_id or "\0" in (span.parent_id or ""):
        ids = (span.trace_id, span.span_id, span.parent_id)
        raise _refused(span, "trace_id, span_id or parent_id", ids, "hex digits, no NUL")
    for name, time in (("start_time", span.start_time), ("end_time", span.end_time)):
        if time is not None and not math.isfinite(time):
            raise _refused(span, name, time, "a finite number or None")
    _check_attributes(span, "attribute", span.attributes)
    _check_attributes(span, "resource attribute", span.resource.attributes)
    for event in span.events:
        _check_attributes(span, f"event {event.name!r}, attribute", event.attributes)
        if event.timestamp is not None and not math.isfinite(event.timestamp):
            raise _refused(span, f"event {event.name!r}", event.timestamp, "a finite timestamp")
    for link in span.links:
        _check_attributes(span, "link attribute", link.attributes or {})


def _check_attributes(span: Span, what: str, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        if isinstance(value, float):
            is_finite = math.isfinite(value)
        elif isinstance(value, list | tuple):
            items = cast(Sequence[Any], value)
            is_finite = all(math.isfinite(item) for item in items if isinstance(item, float))
        else:
            continue
        if not is_finite:
            raise _refused(
                span, f"{what} {key!r}", cast(Any, value), "finite numbers; write others as text"
            )


def _refused(span: Span, what: str, got: object, expected: str) -> Exception:
    return InvalidRecordError(
        f"span {span.name!r} ({span.span_id!r}) of attempt {span.attempt_id!r}: {what} is "
        f"{got!r}; expected {expected}. Nothing was stored"
    )
