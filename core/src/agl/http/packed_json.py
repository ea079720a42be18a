"""Spans as they come over the wire: checked, and kept as the bytes that they are.

What passes here is what ``agl.types.Span`` takes, and less: a span that pydantic would have to
convert, or that has keys of its own, is refused here and left to pydantic. So there is one set of
rules, and nearly all spans are spared a model that nobody looks into.
"""

from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from agl.store.packed import MAX_SEQUENCE_ID, PackedSpan
from agl.types import UNASSIGNED

_Scalar = str | bool | int | float
_Attributes = dict[str, _Scalar | list[_Scalar]]


class _Part(Struct, forbid_unknown_fields=True, gc=False):
    pass


class _Context(_Part):
    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: dict[str, str]


class _Status(_Part):
    status_code: Literal["UNSET", "OK", "ERROR"]
    description: str | None = None


class _Event(_Part):
    name: str
    attributes: _Attributes
    timestamp: float | None = None


class _Link(_Part):
    context: _Context
    attributes: _Attributes | None = None


class _Resource(_Part):
    attributes: _Attributes
    schema_url: str


class _Span(_Part):
    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: _Status
    attributes: _Attributes
    events: list[_Event]
    links: list[_Link]
    start_time: float | None
    end_time: float | None
    context: _Context | None
    parent: _Context | None
    resource: _Resource


_NULL = Raw(b"null")


class TurnBody(_Part):
    """``agl.http.wire.TurnBody`` with what is in it still packed."""

    spans: list[Raw] = []
    finish: Raw = _NULL
    claim: Raw = _NULL


_span_decoder = msgspec.json.Decoder(_Span)
_raws_decoder = msgspec.json.Decoder(list[Raw])
_turn_decoder = msgspec.json.Decoder(TurnBody)
_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_encoder = msgspec.json.Encoder()


def pack(raw: bytes | Raw) -> PackedSpan:
    """Check a span.

    Raises:
        ValueError: It is for pydantic to say what of it.
    """
    span = _span_decoder.decode(raw)
    if (
        not UNASSIGNED <= span.sequence_id <= MAX_SEQUENCE_ID
        or "\0" in span.span_id + span.trace_id
    ):
        raise ValueError("for check_span to name")
    if span.parent_id is not None and "\0" in span.parent_id:
        raise ValueError("for check_span to name")
    _check_lists(span.attributes)
    if span.resource.attributes:
        _check_lists(span.resource.attributes)
    for event in span.events:
        _check_lists(event.attributes)
    for link in span.links:
        _check_lists(link.attributes or {})
    return PackedSpan(
        span.rollout_id,
        span.attempt_id,
        span.sequence_id,
        span.span_id,
        span.trace_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        str(memoryview(raw), "utf-8"),
    )


def pack_all(body: bytes) -> list[PackedSpan]:
    """The same for an array of spans."""
    return [pack(raw) for raw in _raws_decoder.decode(body)]


def read_turn(body: bytes) -> TurnBody:
    """Take a turn's body apart.

    Raises:
        ValueError: It is none.
    """
    return _turn_decoder.decode(body)


def numbered(span: PackedSpan) -> bytes:
    """The span's JSON with the number that it was given."""
    fields = _fields_decoder.decode(span.body)
    fields["sequence_id"] = Raw(b"%d" % span.sequence_id)
    return _encoder.encode(fields)


def receipts(spans: Any) -> bytes:
    """Spans that were added, without what the sender knows already: see ``wire.SpanReceipt``."""
    return _encoder.encode(
        [
            {
                "rollout_id": span.rollout_id,
                "attempt_id": span.attempt_id,
                "span_id": span.span_id,
                "sequence_id": span.sequence_id,
            }
            for span in spans
        ]
    )


def _check_lists(attributes: _Attributes) -> None:
    """Refuse lists of several kinds; pydantic converts some of those."""
    for value in attributes.values():
        if type(value) is list and len(value) > 1:
            kind = type(value[0])
            if any(type(item) is not kind for item in value):
                raise ValueError("a list of several kinds")
