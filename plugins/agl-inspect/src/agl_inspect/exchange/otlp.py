"""OTLP as JSON: what OpenTelemetry's collector writes with its file exporter.

One ``ExportTraceServiceRequest`` or ``ExportLogsServiceRequest`` per line, or one in the whole
file. Spans that name an agl rollout keep to it; of the others each trace is a rollout of its own.

Instrumentation that keeps messages out of spans sends GenAI events as logs, in the structured body
or attributes of log records. The reader of GenAI spans takes them as events of the span that they
name, with JSON as texts.
"""

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agl.errors import ConfigError
from agl.semconv import LightningResourceAttributes as Ids
from agl.types import Attributes, Event, Span
from agl_http.otlp import spans_of
from agl_inspect.exchange.recorded import errors_at, objects_of
from agl_inspect.exchange.traces import UNNAMED
from agl_records.calls.sources.events import BODY, is_genai_event


class LoggedEvents:
    """The GenAI events in the logs of files of OTLP; other signals in them are passed over.

    A log record that cannot be read is a ``ConfigError``.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._of: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        self._taken: set[tuple[str, str]] = set()
        for where, request in (one for path in paths for one in objects_of(path)):
            with errors_at(where, "logs of OTLP"):
                for record in (
                    record
                    for group in request.get("resourceLogs", ())
                    for scope in group["scopeLogs"]
                    for record in scope["logRecords"]
                ):
                    event = _event(record)
                    if is_genai_event(event.name):
                        trace_id, span_id = (record.get(k, "") for k in ("traceId", "spanId"))
                        self._of[trace_id.lower(), span_id.lower()].append(event)

    def put_to(self, span: Span) -> Span:
        ids = (span.trace_id, span.span_id)
        if (found := self._of.get(ids)) is None:
            return span
        self._taken.add(ids)
        return span.model_copy(update={"events": [*span.events, *found]})

    def remarks(self) -> list[str]:
        """A sentence on the events that none of the spans had, if there are any."""
        left = sum(len(found) for ids, found in self._of.items() if ids not in self._taken)
        why = "GenAI events in logs were not read, as no file has their spans"
        return [f"{left} {why}"] if left else []


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
        except (ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: not OTLP: {error}") from None
        if refused:
            raise ConfigError(f"{where}: {refused[0]}")
        yield from map(events.put_to, spans)


def _packed(request: dict[str, Any]) -> bytes:
    """A request as protobuf; ids are hex in OTLP's JSON, where protobuf's has base64."""
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
    packed = ParseDict(request, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    for group in packed.resource_spans:  # where nothing says whose a span is, it is its trace's
        own = {attribute.key for attribute in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            names = own | {attribute.key for attribute in span.attributes}
            for key, value in ((Ids.ROLLOUT_ID, span.trace_id.hex()), (Ids.ATTEMPT_ID, UNNAMED)):
                if key.value not in names:
                    span.attributes.add(key=key.value).value.string_value = value
    return packed.SerializeToString()


def _event(record: Mapping[str, Any]) -> Event:
    attributes: Attributes = {
        one["key"]: value if isinstance(value, str | bool | int | float) else json.dumps(value)
        for one in record.get("attributes", ())
        for value in [_plain(one["value"])]
    }
    body = _plain(record.get("body") or {})
    if isinstance(body, dict):
        attributes[BODY] = json.dumps(body)
    name = record.get("eventName") or attributes.get("event.name") or ""
    nanoseconds = record.get("timeUnixNano") or record.get("observedTimeUnixNano") or 0
    return Event(name=str(name), attributes=attributes, timestamp=int(nanoseconds) / 1e9)


def _plain(value: Mapping[str, Any]) -> Any:
    """A value out of OTLP's JSON, which names its type."""
    for kind, one in value.items():
        if kind == "kvlistValue":
            return {item["key"]: _plain(item["value"]) for item in one.get("values", ())}
        if kind == "arrayValue":
            return [_plain(item) for item in one.get("values", ())]
        return int(one) if kind == "intValue" else one
    return None
