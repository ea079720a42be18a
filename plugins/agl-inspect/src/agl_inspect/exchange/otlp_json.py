"""OTLP as JSON: what OpenTelemetry's collector writes with its file exporter.

One ``ExportTraceServiceRequest`` or ``ExportLogsServiceRequest`` per line, or one in the whole
file. Spans that name an agl rollout keep to it; of the others each trace is a rollout of its own.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.semconv import LightningResourceAttributes as Ids
from agl.types import Span
from agl_http.otlp import spans_of
from agl_inspect.exchange.otlp_events import LoggedEvents
from agl_inspect.exchange.recorded import objects_of
from agl_inspect.exchange.traces import UNNAMED

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def is_otlp(path: Path) -> bool:
    """Whether the file's first object is an OTLP request."""
    try:
        _, request = next(objects_of(path))
    except (ConfigError, StopIteration):
        return False
    return not request.keys().isdisjoint(("resourceSpans", "resourceLogs"))


def read_otlp(path: Path, events: LoggedEvents) -> Iterator[Span]:
    """The spans of a file, with the events that logs have of them; errors as ``ReadSpans`` has."""
    for where, request in objects_of(path):
        if "resourceLogs" in request and "resourceSpans" not in request:
            continue
        try:
            spans, refused = spans_of(_packed(request))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: not OTLP: {error}") from None
        if refused:
            raise ConfigError(f"{where}: {refused[0]}")
        yield from map(events.put_to, spans)


def _packed(request: dict[str, Any]) -> bytes:
    """A request as protobuf; ids are hex in OTLP's JSON, where protobuf's has base64."""
    from google.protobuf.json_format import ParseDict, ParseError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    if "resourceSpans" not in request:
        raise ValueError(f"expected 'resourceSpans', got the keys {sorted(request)}")
    for group in request["resourceSpans"]:
        if "scopeSpans" not in group:
            # Protobuf's reader would pass over what older versions called it.
            raise ValueError(f"expected 'scopeSpans' in 'resourceSpans', got {sorted(group)}")
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            for part in (span, *span.get("links", ())):
                for key in ("traceId", "spanId", "parentSpanId"):
                    if part.get(key):
                        part[key] = base64.b64encode(bytes.fromhex(part[key])).decode()
    try:
        packed = ParseDict(request, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(str(error)) from None
    name_spans(packed)
    return packed.SerializeToString()


def name_spans(request: "ExportTraceServiceRequest") -> None:
    """Let every span say whose it is: where nothing does, its trace's."""
    for group in request.resource_spans:
        own = {attribute.key for attribute in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            names = own | {attribute.key for attribute in span.attributes}
            for key, value in ((Ids.ROLLOUT_ID, span.trace_id.hex()), (Ids.ATTEMPT_ID, UNNAMED)):
                if key.value not in names:
                    span.attributes.add(key=key.value).value.string_value = value
