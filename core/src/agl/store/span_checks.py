"""Which spans a store refuses, and how a span becomes one that a store accepts."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from agl.errors import AglError, InvalidRecordError
from agl.store.packed_span import packed
from agl.types import UNASSIGNED, Span
from agl.utils.json_values import INT_BITS
from agl.utils.text import clean

MAX_SEQUENCE_ID = 1 << 53
"""Larger numbers are not the same everywhere."""


def check_span(span: Span) -> None:
    """Refuse what JSON or a database could not give back as it was.

    Raises:
        InvalidRecordError: A number that is not finite, an id with a NUL, a text with a lone
            surrogate, or a ``sequence_id`` that is negative or too large.
    """
    if not UNASSIGNED <= span.sequence_id <= MAX_SEQUENCE_ID:
        expected = f"{UNASSIGNED} for the next number, or 1 to {MAX_SEQUENCE_ID}"
        raise _refused(span, "sequence_id", span.sequence_id, expected)
    if "\0" in span.span_id or "\0" in span.trace_id or "\0" in (span.parent_id or ""):
        ids = (span.trace_id, span.span_id, span.parent_id)
        raise _refused(span, "trace_id, span_id or parent_id", ids, "hex digits, no NUL")
    _check_text(span, "name", span.name)
    _check_text(span, "status", span.status.description)
    for name, time in (("start_time", span.start_time), ("end_time", span.end_time)):
        if time is not None and not math.isfinite(time):
            raise _refused(span, name, time, "a finite number or None")
    _check_attributes(span, "attribute", span.attributes)
    _check_attributes(span, "resource attribute", span.resource.attributes)
    for event in span.events:
        _check_text(span, f"event {event.name!r}", event.name)
        _check_attributes(span, f"event {event.name!r}, attribute", event.attributes)
        if event.timestamp is not None and not math.isfinite(event.timestamp):
            raise _refused(span, f"event {event.name!r}", event.timestamp, "a finite timestamp")
    for link in span.links:
        _check_attributes(span, "link attribute", link.attributes or {})


def is_refusal(error: BaseException) -> bool:
    """Whether a store's error is about the record, so that the same call will fail again.

    A store that is not ours may let through what its encoder says.
    """
    if isinstance(error, AglError):
        return isinstance(error, InvalidRecordError)
    return isinstance(error, ValueError | TypeError | OverflowError)


async def add_accepted(
    add: Callable[[Sequence[Span]], Awaitable[Sequence[Span]]], spans: Sequence[Span]
) -> tuple[list[Span], list[Exception]]:
    """Add those spans that the store takes; what it added, and why it refused the others.

    Of many, a refused one costs few calls: each half is tried, and the half of that.
    """
    try:
        return list(await add(spans)) if spans else [], []
    except Exception as error:
        if not is_refusal(error):
            raise
        if len(spans) == 1:
            return [], [error]
    half = len(spans) // 2
    first, second = await add_accepted(add, spans[:half]), await add_accepted(add, spans[half:])
    return first[0] + second[0], first[1] + second[1]


def storable(span: Span) -> Span:
    """The span as a store takes it; nearly always as it is.

    A number that is not finite becomes text, and so does all of a list that holds one; a lone
    surrogate becomes U+FFFD: one such value must not cost the whole span, or those beside it. What
    else is wrong is refused; see ``check_span``.
    """
    try:
        _check_all(span)
    except InvalidRecordError:
        span = Span.model_validate(_cleaned(span.model_dump()))
        _check_all(span)
    return span


def _check_all(span: Span) -> None:
    check_span(span)
    packed(span)  # refuses what else a store could not pack: a text of a link, say


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {clean(key): _cleaned(item) for key, item in fields.items()}
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return [_cleaned(item) if _is_finite(value) else str(_cleaned(item)) for item in items]
    if _is_finite(value):
        return value
    return json.dumps(value) if isinstance(value, float) else hex(value)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= INT_BITS
    if isinstance(value, list | tuple):
        return all(map(_is_finite, cast(Sequence[Any], value)))
    return True


def _check_attributes(span: Span, what: str, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        is_text = isinstance(value, str)
        is_plain = value.isascii() if is_text else isinstance(value, float) and _is_finite(value)
        if is_plain and key.isascii():
            continue  # as nearly all are
        if not _is_finite(value):
            raise _refused(span, f"{what} {key!r}", value, "finite numbers; write others as text")
        _check_text(span, what, key)
        _check_text(span, f"{what} {key!r}", value)


def _check_text(span: Span, what: str, value: Any) -> None:
    texts = cast(Sequence[Any], value) if isinstance(value, list | tuple) else (value,)
    for text in texts:
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                broken = text[error.start : error.end]
                raise _refused(span, what, broken, "text that UTF-8 can hold") from None


def _refused(span: Span, what: str, got: object, expected: str) -> Exception:
    try:
        shown = repr(got)
    except ValueError:
        shown = "a number of more than 4,300 digits"
    return InvalidRecordError(
        f"span {span.name!r} ({span.span_id!r}) of attempt {span.attempt_id!r}: {what} is "
        f"{shown}; expected {expected}. Nothing was stored"
    )
