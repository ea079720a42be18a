"""What Weave's client takes for W&B's server: it makes spans of the calls."""

import datetime
import hashlib
import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from agl.semconv import LightningSpanAttributes as Key
from agl.utils.json_values import to_json_text
from agl.utils.otel import to_attributes

SUMMARY = "weave.summary"
MISSING: Any = object()


class LocalServer:
    """The methods of Weave's ``TraceServerClientInterface`` that its client calls while tracing.

    They are called where the traced function is called, so that OpenTelemetry's context tells the
    rollout; see ``weave.local_client``.
    """

    def __init__(self) -> None:
        # By a call's id: its span, and the span that was current when it began.
        self._open: dict[str, tuple[Span, Span]] = {}
        # By their references, which Weave puts in the place of objects.
        self._objects: dict[str, Any] = {}

    def nearest(self, call_id: str | None) -> Span | None:
        """The span of a call, unless an OpenTelemetry span was begun within it and is current."""
        span, around = self._open.get(call_id or "", (None, None))
        return span if around is trace.get_current_span() else None

    def call_start(self, request: Mapping[str, Any]) -> None:
        """A call begins: so does its span, below that of the call around it."""
        start = request["start"]
        inputs = {k: v for k, v in start["inputs"].items() if not is_not_given(v)}
        parent = self.nearest(start["parent_id"])
        name = op_name(start["op_name"])
        attributes = {
            **self._flat("", start["attributes"]),
            **self._flat(Key.OPERATION_INPUT, inputs),
            Key.OPERATION_NAME.value: start["display_name"] or name,
        }
        around = trace.get_current_span()
        span = trace.get_tracer("agl_tracers.weave").start_span(
            name,
            None if parent is None else trace.set_span_in_context(parent),
            attributes=attributes,
            start_time=nanoseconds(start["started_at"]),
        )
        self._open[start["id"]] = span, around

    def call_end(self, request: Mapping[str, Any]) -> None:
        """A call has returned or raised."""
        end = request["end"]
        span, _ = self._open.pop(end["id"])
        if end["output"] is not None:
            span.set_attributes(self._flat(Key.OPERATION_OUTPUT, end["output"]))
        span.set_attributes(self._flat(SUMMARY, end["summary"]))
        if end["exception"] is None:
            span.set_status(Status(StatusCode.OK))
        else:
            record_exception(span, end["exception"])
        span.end(nanoseconds(end["ended_at"]))

    def obj_create(self, request: Mapping[str, Any]) -> Any:
        """An object or an op, which Weave sends once and refers to."""
        given = request["obj"]
        value, digest = given["val"], digest_of(given["val"])
        if not (isinstance(value, dict) and value.get("_type") == "CustomWeaveType"):
            kept = f"weave:///{given['project_id']}/object/{given['object_id']}:{digest}"
            self._objects[kept] = value
        return SimpleNamespace(digest=digest)

    def file_create(self, request: Mapping[str, Any]) -> Any:
        """The contents of media; only the digest is kept."""
        return SimpleNamespace(digest=hashlib.sha256(request["file"][1]).hexdigest())

    def table_create(self, request: Mapping[str, Any]) -> Any:
        """The rows of a data set; only the digests are kept."""
        rows = request["table"]["rows"]
        digests = [digest_of(row) for row in rows]
        return SimpleNamespace(digest=digest_of(rows), row_digests=digests)

    def _flat(self, prefix: str, value: Any) -> dict[str, Any]:
        """Span attributes of JSON data."""
        value = self._spare(value)
        try:
            return to_attributes({prefix: value} if prefix else value)
        except ValueError:  # the data's own keys have dots in them, and two become one
            return {prefix or "weave.attributes": to_json_text(value)}

    def _spare(self, value: Any) -> Any:
        """The same data with objects for references, and without keys whose value is None.

        Log-probabilities become one JSON string: a token of those would be several attributes.
        """
        if isinstance(value, str) and value.startswith("weave:///"):
            value = self._referred(value)
        if isinstance(value, Mapping):
            return {
                key: to_json_text(item) if key == "logprobs" else self._spare(item)
                for key, item in value.items()
                if item is not None
            }
        if isinstance(value, list):
            return [self._spare(item) for item in value]
        return value

    def _referred(self, reference: str) -> Any:
        """The object, or the part of it, that a reference names; the reference if it is unknown."""
        kept, *path = re.split("/(attr|key|index)/", reference)
        value: Any = self._objects.get(kept, MISSING)
        for kind, name in zip(path[::2], path[1::2], strict=True):
            try:
                value = value[int(name) if kind == "index" else name]
            except (KeyError, IndexError, TypeError):
                value = MISSING
        return reference if value is MISSING else value


def op_name(reference: str) -> str:
    """``openai.chat.completions.create`` of ``weave:///agl/local/op/<that>:<digest>``."""
    return reference.rpartition("/")[2].partition(":")[0]


def is_not_given(value: Any) -> bool:
    """Whether Weave wrote this for an option that a client has and nobody gave."""
    return value == "NOT_GIVEN" or (isinstance(value, str) and ".Omit object at 0x" in value[:80])


def record_exception(span: Span, text: str) -> None:
    """Status and event, as OpenTelemetry has them, of Weave's JSON."""
    found = json.loads(text)
    event = {
        "exception.type": found.get("type"),
        "exception.message": found.get("message"),
        "exception.stacktrace": found.get("traceback"),
    }
    span.add_event("exception", {key: str(value) for key, value in event.items() if value})
    span.set_status(Status(StatusCode.ERROR, found.get("message") or found.get("type")))


def digest_of(value: Any) -> str:
    """The same for the same data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def nanoseconds(moment: datetime.datetime | None) -> int | None:
    """Since 1970."""
    return None if moment is None else int(moment.timestamp() * 1e9)
