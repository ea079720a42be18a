"""OTLP as JSON: what OpenTelemetry's collector writes with its file exporter.

One ``ExportTraceServiceRequest`` per line, or one in the whole file. Spans that name an agl rollout
keep to it; of the others each trace is a rollout of its own.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AdapterError, ConfigError
from agl.semconv import LightningResourceAttributes as Ids
from agl.types import Span
from agl_http.otlp import spans_of
from agl_inspect.exchange.importer import IMPORTED, Importer
from agl_inspect.exchange.recorded import each_line, parse, text_of
from agl_records.calls.reader import model_calls, unread_spans

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BATCH = 500
"""Spans that are written at once."""
UNNAMED = "recorded"
"""Attempt id, in the file's terms, of spans that name none."""


def is_otlp(path: Path) -> bool:
    """Whether the file's first object is an OTLP request."""
    try:
        _, request = next(_requests(path))
    except (ConfigError, StopIteration):
        return False
    return "resourceSpans" in request


@dataclass
class Trace:
    """What is known of one rollout of the file."""

    order: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """(start, id) of its spans."""
    error: str | None = None
    """Of its root span."""


async def add_otlp(importer: Importer, path: Path) -> None:
    """Import a file, a request at a time.

    The task of a rollout is what its first model call was asked: the last message of a user.

    Raises:
        ConfigError: A line is no OTLP, or a span cannot be stored; nothing was written.
    """
    traces: defaultdict[str, Trace] = defaultdict(Trace)
    for span in _spans(path):
        trace = traces[span.rollout_id]
        trace.order.append((span.start_time or 0.0, span.span_id))
        if span.parent_id is None and span.status.status_code == "ERROR":
            trace.error = span.status.description or f"span {span.name!r} has status ERROR"
    # Files have spans in the order in which they ended; a store numbers them as they began.
    numbers = {
        rollout_id: {span_id: n for n, (_, span_id) in enumerate(sorted(trace.order), start=1)}
        for rollout_id, trace in traces.items()
    }
    open_ids: dict[str, tuple[str, str]] = {}
    batch: list[Span] = []
    for span in _spans(path):
        if importer.ids.get(span.rollout_id, ("", False))[1] and span.rollout_id not in open_ids:
            continue
        if span.rollout_id not in open_ids:
            origin = {"id": span.rollout_id, "from": path.name}
            open_ids[span.rollout_id] = await importer.begin(
                span.rollout_id, input=None, metadata={IMPORTED: origin}
            )
        rollout_id, attempt_id = open_ids[span.rollout_id]
        number = numbers[span.rollout_id][span.span_id]
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": number}
        batch.append(span.model_copy(update=ids))
        if len(batch) >= BATCH:
            await _write(importer, batch)
    await _write(importer, batch)
    importer.done.known += len(traces) - len(open_ids)
    for name, (rollout_id, attempt_id) in open_ids.items():
        own = await importer.store.query_spans(rollout_id, attempt_id)
        importer.done.unread += unread_spans(own)
        task = task_of(own)
        if task is not None:
            await importer.store.update_rollout(rollout_id, input=task)
        await importer.end(name, rollout_id, attempt_id, traces[name].error)


async def _write(importer: Importer, batch: list[Span]) -> None:
    if batch:
        importer.done.spans += len(await importer.store.add_many_spans(batch))
        batch.clear()
        importer.progress(importer.done)


def task_of(spans: Sequence[Span]) -> Any:
    """What the first model call was asked; None where there is no call."""
    try:
        calls = model_calls(spans)
    except AdapterError:
        return None
    asked = [m.get("content") for m in (calls[0].messages if calls else ()) if m["role"] == "user"]
    return asked[-1] if asked else None


def _spans(path: Path) -> Iterator[Span]:
    for where, request in _requests(path):
        try:
            spans, refused = spans_of(_packed(request))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: not OTLP: {error}") from None
        if refused:
            raise ConfigError(f"{where}: {refused[0]}")
        yield from spans


def _requests(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix.lower() == ".json":
        with text_of(path) as file:
            yield str(path), parse(file.read(), str(path))
        return
    for number, line in each_line(path):
        where = f"{path}, line {number}"
        yield where, parse(line, where)


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
