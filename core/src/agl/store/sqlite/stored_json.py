"""Answers in JSON, put together out of what is stored: no record is made to be written out again.

They say what the JSON of the records says; numbers and texts are spelled as they are stored, and
what a part of a span left out is left out.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from pydantic_core import from_json, to_json

from agl.store.sqlite.rows import ATTEMPT_FIELDS, ROLLOUT_FIELDS

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
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


def spans_json(rows: Iterable[tuple[bytes, int]]) -> bytes:
    """Spans, with commas between them, from their bodies and numbers."""
    try:
        spans = [{**_decode_fields(body), "sequence_id": number} for body, number in rows]
    except msgspec.DecodeError as error:
        raise ValueError(f"a span: {error}") from error
    return _encode(spans)[1:-1]


def _raw(text: str | bytes | None) -> Raw | None:
    if text is None:
        return None
    text = text if isinstance(text, str) else text.decode()
    if "NaN" in text or "Infinity" in text:  # which the wire does not know; or only in a text
        return Raw(to_json(from_json(text), inf_nan_mode="null"))
    return _decode_raw(text)
