"""OpenTelemetry's wire format (OTLP protobuf) to spans.

What a span loses on the way in: its kind and OpenTelemetry's counts of dropped items. Attribute
values that a ``Span`` cannot hold are unfolded, never dropped: a map becomes ``key.name``, a list
of several types ``key.0``, ``key.1``, bytes become hex, a number that is not finite its name,
nothing an empty string.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan, Status as ProtoStatus

from agl.semconv import LightningResourceAttributes as Keys
from agl.store.packed_span import PackedSpan, indexed_items, unpacked
from agl.store.span_checks import MAX_SEQUENCE_ID
from agl.types import UNASSIGNED, Attributes, Span, StatusCode, TraceState
from agl.types.spans import unfold

_STATUS: dict[int, StatusCode] = {0: "UNSET", 1: "OK", 2: "ERROR"}
"""OpenTelemetry has no other codes; what a newer or broken exporter sends is none of these."""
_ROLLOUT_ID, _ATTEMPT_ID = Keys.ROLLOUT_ID.value, Keys.ATTEMPT_ID.value
_SEQUENCE_ID = Keys.SPAN_SEQUENCE_ID.value
_SCALARS: dict[str, Callable[[AnyValue], Any]] = {
    kind: attrgetter(kind) for kind in ("string_value", "bool_value", "int_value", "double_value")
}
_encode = msgspec.json.Encoder().encode
MAX_ITEMS = 500_000
"""Spans, their attributes, events and links in one request. Nearly empty ones cost hundreds of
times what sending them does."""
_OWN_SCOPES = ("", "agl", "agentlightning")
"""As ``Span.from_opentelemetry`` has it: the scope is kept of spans that are not ours."""
_IS_REMOTE = 0x200
"""Bit of ``flags``: the parent (or link) was in another process."""


def packed_of(body: bytes) -> tuple[list[PackedSpan], list[str]]:
    """Read an ``ExportTraceServiceRequest``.

    Whose span it is, and optionally its number, stands in the span's attributes or else in its
    resource's: see ``agl.semconv.LightningResourceAttributes``.

    Returns:
        The spans in the order of the request, and for each span that cannot be stored a sentence
        that says why.

    Raises:
        ValueError: The bytes are no such request.
    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except Exception as error:  # protobuf's DecodeError, whose module differs between versions
        raise ValueError(f"not an ExportTraceServiceRequest: {error}") from None
    spans: list[PackedSpan] = []
    rejected: list[str] = []
    items = _few(len(request.resource_spans))
    for group in request.resource_spans:
        items = _few(items + len(group.scope_spans) + len(group.resource.attributes))
        attributes = _attributes(group.resource.attributes)
        resource = Raw(_encode({"attributes": attributes, "schema_url": group.schema_url}))
        for scope in group.scope_spans:
            items = _few(items + len(scope.spans))
            for proto in scope.spans:
                items = _few(items + len(proto.attributes) + len(proto.events) + len(proto.links))
                try:
                    spans.append(_packed(proto, attributes, resource, scope.scope.name))
                except ValueError as error:
                    rejected.append(f"span {proto.name!r}: {error}")
    return spans, rejected


def _few(items: int) -> int:
    if items > MAX_ITEMS:
        raise ValueError(f"more than {MAX_ITEMS} spans and attributes; export fewer at once")
    return items


def spans_of(body: bytes) -> tuple[list[Span], list[str]]:
    """``packed_of`` with its spans unpacked."""
    spans, rejected = packed_of(body)
    return unpacked(spans), rejected


def response_of(rejected: Sequence[str]) -> bytes:
    """The answer to a request: a success, or a partial one with how many failed and why."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = len(rejected)
        more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
        response.partial_success.error_message = "; ".join(rejected[:5]) + more
    return response.SerializeToString()


def status_message(text: str) -> bytes:
    """A ``google.rpc.Status`` with a message, which is how OTLP answers errors.

    Its generated class is in a package that the core does not otherwise need; OpenTelemetry's own
    ``Status`` has its message in the same field.
    """
    return ProtoStatus(message=text).SerializeToString()


def _packed(proto: ProtoSpan, of_resource: Attributes, resource: Raw, scope: str) -> PackedSpan:
    """The span as the JSON of an ``agl.types.Span``, which need not be made for that."""
    attributes = _attributes(proto.attributes)
    rollout_id = attributes.get(_ROLLOUT_ID) or of_resource.get(_ROLLOUT_ID)
    attempt_id = attributes.get(_ATTEMPT_ID) or of_resource.get(_ATTEMPT_ID)
    if not isinstance(rollout_id, str) or not isinstance(attempt_id, str):
        raise ValueError(
            f"needs the attributes {_ROLLOUT_ID!r} and {_ATTEMPT_ID!r}, on itself or on its "
            f"resource; got {rollout_id!r} and {attempt_id!r}"
        )
    if len(proto.trace_id) != 16 or len(proto.span_id) != 8:
        raise ValueError(
            f"needs a trace id of 16 bytes and a span id of 8; got {len(proto.trace_id)} and "
            f"{len(proto.span_id)}"
        )
    sequence_id = _sequence_id(attributes.get(_SEQUENCE_ID), of_resource.get(_SEQUENCE_ID))
    if sequence_id > MAX_SEQUENCE_ID:
        raise ValueError(f"its number is {sequence_id}; expected at most {MAX_SEQUENCE_ID}")
    trace_id, span_id = proto.trace_id.hex(), proto.span_id.hex()
    parent_id = proto.parent_span_id.hex() or None
    body: dict[str, Any] = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": sequence_id,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent_id,
        "name": proto.name,
        "status": {
            "status_code": _STATUS.get(proto.status.code, "UNSET"),
            "description": proto.status.message or None,
        },
        "attributes": attributes,
        "events": [
            {
                "name": event.name,
                "attributes": _attributes(event.attributes),
                "timestamp": _seconds(event.time_unix_nano),
            }
            for event in proto.events
        ],
        "links": [
            {
                "context": _context(
                    link.trace_id.hex(), link.span_id.hex(), link.flags, link.trace_state
                ),
                "attributes": _attributes(link.attributes),
            }
            for link in proto.links
        ],
        "start_time": _seconds(proto.start_time_unix_nano),
        "end_time": _seconds(proto.end_time_unix_nano),
        "context": _context(trace_id, span_id, 0, proto.trace_state),
        "parent": _context(trace_id, parent_id, proto.flags, "") if parent_id else None,
        "resource": resource,
    }
    if scope not in _OWN_SCOPES:
        body["scope"] = scope
    return PackedSpan(*indexed_items(body), body=_encode(body).decode(), attributes=attributes)


def _context(trace_id: str, span_id: str, flags: int, trace_state: str) -> dict[str, Any]:
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "is_remote": bool(flags & _IS_REMOTE),
        "trace_state": _trace_state(trace_state),
    }


def _sequence_id(*candidates: object) -> int:
    """The first that is a number from 1, as such or in digits; else ``UNASSIGNED``."""
    for value in candidates:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:19])
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return UNASSIGNED


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None


def _trace_state(text: str) -> TraceState:
    """W3C ``a=1,b=2``."""
    if not text:
        return {}
    pairs = (item.strip().partition("=") for item in text.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _attributes(key_values: Iterable[KeyValue]) -> Attributes:
    attributes: Attributes = {}
    for item in key_values:
        value = item.value
        # What nearly all attributes are; an empty text is told from no text below.
        if (text := value.string_value) and item.key not in attributes:
            attributes[item.key] = text
        elif (values := value.array_value.values) and (same := _uniform(values)):
            unfold(attributes, item.key, same)
        else:
            unfold(attributes, item.key, _value(value))
    return attributes


def _uniform(values: Sequence[AnyValue]) -> list[Any] | None:
    """The values of a list of one scalar kind; None for any other list.

    An element that is not of the first one's kind reads as that kind's default, and so do some
    that are; only those are looked at twice.
    """
    kind = values[0].WhichOneof("value")
    if kind is None or kind not in _SCALARS:
        return None
    found = list(map(_SCALARS[kind], values))
    if not all(found) and not all(
        one.HasField(kind) for one, read in zip(values, found, strict=True) if not read
    ):
        return None
    if kind == "double_value" and not all(map(math.isfinite, found)):
        return None
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "double_value" and not math.isfinite(value.double_value):
        return json.dumps(value.double_value)
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _value(item.value) for item in value.kvlist_value.values}
    return value.bytes_value.hex()  # of nothing: an empty text
