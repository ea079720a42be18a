"""Answers in JSON, put together out of what is stored: no record is made to be written out again.

They say what the JSON of the records says; numbers and texts are spelled as they are stored.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from agl.store.packed_span import span_of
from agl.store.sqlite.rows import ATTEMPT_FIELDS, ROLLOUT_FIELDS
from agl.types import Event, Link, Span, TraceStatus

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(Raw).decode
_JSON: Final = ("input", "config", "metadata", "error")


def rollout_json(row: Sequence[Any]) -> bytes:
    """A rollout, and its attempt if it has one, from the columns of ``rollout_view``."""
    rollout = dict(zip(ROLLOUT_FIELDS, row, strict=False))
    attempt = dict(zip(ATTEMPT_FIELDS, row[len(ROLLOUT_FIELDS) :], strict=True))
    try:
        for record in (rollout, attempt):
            record |= {name: _raw(record[name]) for name in _JSON if name in record}
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"rollout {row[0]!r}: {error}") from error
    if attempt["attempt_id"] is not None:
        rollout["attempt"] = attempt
    return _encode(rollout)


def spans_json(rows: Iterable[Sequence[Any]]) -> bytes:
    """Spans, with commas between them, from their bodies and numbers."""
    return _encode([_span(row[0], row[1]) for row in rows])[1:-1]


def _raw(text: str | bytes | None) -> Raw | None:
    if text is None:
        return None
    text = text if isinstance(text, str) else text.decode()
    if "NaN" in text or "Infinity" in text:  # which the wire does not know; or only in a text
        return Raw(to_json(from_json(text), inf_nan_mode="null"))
    return _decode_raw(text)


def _stored(model: type[BaseModel], **looked_into: Any) -> Any:
    """The type of a stored part of a span: as it stands, with defaults for what may be left out."""
    fields: list[Any] = []
    for name, field in model.model_fields.items():
        kind = looked_into.get(name, Raw)
        default: Any = () if field.is_required() else (Raw(to_json(field.default)),)
        if field.exclude_if is not None:  # it is left out as long as it says nothing
            kind, default = Raw | msgspec.UnsetType, (msgspec.UNSET,)
        fields.append((name, kind, *default))
    return msgspec.defstruct(model.__name__, fields, forbid_unknown_fields=True, gc=False)


_decode_span: Final = msgspec.json.Decoder(
    _stored(
        Span,
        sequence_id=int,
        status=_stored(TraceStatus),
        events=list[_stored(Event)],
        links=list[_stored(Link)],
    )
).decode


def _span(body: bytes, sequence_id: int) -> Any:
    try:
        span = _decode_span(body)
    except msgspec.DecodeError:  # it has keys of its own
        return Raw(span_of(body, sequence_id).model_dump_json())
    span.sequence_id = sequence_id
    return span
