"""OpenTelemetry's GenAI events as OTLP's logs, put to the spans that they name.

Instrumentation that keeps messages out of spans sends them so, in the structured body or attributes
of log records. The reader of GenAI spans takes them as events of the span, with JSON as texts.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agl.types import Attributes, Event, Span
from agl_inspect.exchange.recorded import errors_at, objects_of
from agl_records.calls.sources.events import BODY, is_genai_event


class LoggedEvents:
    """The GenAI events in the logs of files.

    Args:
        paths: Files of OTLP as JSON; other signals in them are passed over.

    Raises:
        ConfigError: A log record cannot be read.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._of: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        self._taken: set[tuple[str, str]] = set()
        for where, request in (one for path in paths for one in objects_of(path)):
            with errors_at(where, "logs of OTLP"):
                for record in _records(request):
                    event = _event(record)
                    if is_genai_event(event.name):
                        trace_id, span_id = (record.get(k, "") for k in ("traceId", "spanId"))
                        self._of[trace_id.lower(), span_id.lower()].append(event)

    def put_to(self, span: Span) -> Span:
        """The span with its events."""
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


def _records(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for group in request.get("resourceLogs", ()):
        for scope in group["scopeLogs"]:
            yield from scope["logRecords"]


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
