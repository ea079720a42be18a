"""Spans as an exporter of OpenTelemetry sends them: what ``agl_http.otlp`` reads."""

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ProtoResource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span as ProtoSpan,
    Status as ProtoStatus,
)

from agl.semconv import LightningResourceAttributes as Keys
from agl.types import UNASSIGNED, AttributeValue, Span, SpanContext

_IS_REMOTE = 0x200
"""Bit of ``flags``: the parent (or link) was in another process."""


def request_of(spans: Iterable[Span]) -> bytes:
    """Write spans as an ``ExportTraceServiceRequest``, ids and numbers as attributes."""
    request = ExportTraceServiceRequest()
    for span in spans:
        request.resource_spans.append(
            ResourceSpans(
                resource=ProtoResource(attributes=_key_values(span.resource.attributes)),
                schema_url=span.resource.schema_url,
                scope_spans=[
                    ScopeSpans(scope=InstrumentationScope(name="agl"), spans=[_proto_span(span)])
                ],
            )
        )
    return request.SerializeToString()


def _proto_span(span: Span) -> ProtoSpan:
    attributes = span.attributes | {
        Keys.ROLLOUT_ID.value: span.rollout_id,
        Keys.ATTEMPT_ID.value: span.attempt_id,
    }
    if span.sequence_id != UNASSIGNED:
        attributes[Keys.SPAN_SEQUENCE_ID.value] = span.sequence_id
    return ProtoSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id or ""),
        trace_state=_trace_state_text(span.context),
        flags=_IS_REMOTE if span.parent and span.parent.is_remote else 0,
        name=span.name,
        status=ProtoStatus(
            code=ProtoStatus.StatusCode.Value(f"STATUS_CODE_{span.status.status_code}"),
            message=span.status.description or "",
        ),
        attributes=_key_values(attributes),
        events=[
            ProtoSpan.Event(
                name=event.name,
                attributes=_key_values(event.attributes),
                time_unix_nano=_nanoseconds(event.timestamp),
            )
            for event in span.events
        ],
        links=[
            ProtoSpan.Link(
                trace_id=bytes.fromhex(link.context.trace_id),
                span_id=bytes.fromhex(link.context.span_id),
                trace_state=_trace_state_text(link.context),
                flags=_IS_REMOTE if link.context.is_remote else 0,
                attributes=_key_values(link.attributes or {}),
            )
            for link in span.links
        ],
        start_time_unix_nano=_nanoseconds(span.start_time),
        end_time_unix_nano=_nanoseconds(span.end_time),
    )


def _nanoseconds(seconds: float | None) -> int:
    return round(seconds * 1e9) if seconds else 0


def _trace_state_text(context: SpanContext | None) -> str:
    return ",".join(
        f"{name}={value}" for name, value in (context.trace_state if context else {}).items()
    )


def _key_values(attributes: Mapping[str, AttributeValue]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()]


def _any_value(value: AttributeValue) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    result = AnyValue()
    result.array_value.SetInParent()
    result.array_value.values.extend(_any_value(item) for item in value)
    return result
