"""Answers in JSON, put together out of what is stored: no record is made to be written out again.

They say what the JSON of the records says; numbers and texts are spelled as they are stored, and
what a part of a span left out is left out.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from agl_sqlite.rows import ATTEMPT_FIELDS, ROLLOUT_FIELDS

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_raw = msgspec.json.Decoder(Raw).decode
_JSON: Final = ("input", "config", "metadata", "error")


def rollout_json(row: Sequence[Any]) -> bytes:
    """A rollout, and its attempt if it has one, from the columns of ``rollout_view``."""
    rollout = dict(zip(ROLLOUT_FIELDS, row, strict=False))
    attempt = dict(zip(ATTEMPT_FIELDS, row[len(ROLLOUT_FIELDS) :], strict=True))
    try:
        for record in (rollout, attempt):
            record |= {name: _raw(record[name]) for name in _JSON if record.get(name) is not None}
    except msgspec.DecodeError as error:
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
