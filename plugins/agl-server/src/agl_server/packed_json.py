"""Spans as they come over the wire: checked, and kept as the bytes that they are.

What passes here is what ``agl.types.Span`` takes, and less: a span that pydantic would have to
convert, or that has keys of its own, is refused here and left to pydantic. So there is one set of
rules, and nearly all spans are spared a model that nobody looks into.
"""

import types
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct
from pydantic import BaseModel

from agl.store.base import AttemptEnd
from agl.store.packed_span import PackedSpan, indexed_fields, span_of
from agl.store.span_checks import MAX_SEQUENCE_ID
from agl.types import UNASSIGNED, Attributes, Span
from agl_http import wire

_Scalar = str | bool | int | float
_Attributes = dict[str, _Scalar | list[_Scalar]]


@cache
def _struct_of(model: type[BaseModel]) -> Any:
    """A struct with the fields of a model, and no others."""
    fields = [
        (name, _strict(field.annotation), *(() if field.is_required() else (field.default,)))
        for name, field in model.model_fields.items()
    ]
    return msgspec.defstruct(model.__name__, fields, forbid_unknown_fields=True, gc=False)


def _strict(hint: Any) -> Any:
    """A field's type as msgspec reads it, which converts nothing."""
    if hint == Attributes:
        return _Attributes
    if getattr(hint, "model_fields", None):
        return _struct_of(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is list:
        return list[_strict(args[0])]
    if origin in (Union, types.UnionType):
        return Union[*map(_strict, args)]
    return hint


class PackedTurn(NamedTuple):
    """``wire.TurnBody`` with its spans packed."""

    spans: list[PackedSpan]
    finish: AttemptEnd | None
    claim: wire.DequeueBody | None


class _RawTurn(Struct, forbid_unknown_fields=True, gc=False):
    spans: list[Raw] = []
    finish: Raw = Raw(b"null")
    claim: Raw = Raw(b"null")


_receipt = _struct_of(wire.SpanReceipt)
_span_decoder = msgspec.json.Decoder(_struct_of(Span))
_raws_decoder = msgspec.json.Decoder(list[Raw])
_turn_decoder = msgspec.json.Decoder(_RawTurn)
_stored_decoder = msgspec.json.Decoder(
    msgspec.defstruct(  # a span of which only the number is looked at
        "StoredSpan",
        [
            (name, int if name == "sequence_id" else Raw)
            if field.is_required()
            else (name, Raw | msgspec.UnsetType, msgspec.UNSET)
            for name, field in Span.model_fields.items()
        ],
        forbid_unknown_fields=True,
        gc=False,
    )
)
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
    body = str(memoryview(raw), "utf-8").strip()
    if body.count("[") > 2:  # more than those of its events and links
        _check_lists(span.attributes)
        _check_lists(span.resource.attributes)
        for part in (*span.events, *span.links):
            _check_lists(part.attributes or {})
    attributes: dict[str, Any] = {} if span.late else span.attributes
    return PackedSpan(*indexed_fields(span), body=body, writer=span.writer, attributes=attributes)


def pack_all(body: bytes) -> list[PackedSpan]:
    """The same for an array of spans."""
    return [pack(raw) for raw in _raws_decoder.decode(body)]


def read_turn(body: bytes) -> PackedTurn:
    """Read a turn's body.

    Raises:
        ValueError: It is none, or one that pydantic may take.
    """
    turn = _turn_decoder.decode(body)
    finish, claim = bytes(turn.finish), bytes(turn.claim)
    return PackedTurn(
        [pack(raw) for raw in turn.spans],
        None if finish == b"null" else AttemptEnd.model_validate_json(finish),
        None if claim == b"null" else wire.DequeueBody.model_validate_json(claim),
    )


def span_json(body: str | bytes, sequence_id: int) -> bytes:
    """JSON of a packed span with its number, else as it came; a ``ValueError`` if it is none."""
    try:
        span: Any = _stored_decoder.decode(body)
    except msgspec.DecodeError:  # it has keys of its own, or is damaged
        return span_of(body, sequence_id).model_dump_json().encode()
    span.sequence_id = sequence_id
    return _encoder.encode(span)


def receipts(spans: Any) -> bytes:
    """Spans that were added, without what the sender knows already: see ``wire.SpanReceipt``."""
    return _encoder.encode(
        [
            _receipt(span.rollout_id, span.attempt_id, span.span_id, span.sequence_id)
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
