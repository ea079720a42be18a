"""A report of 0.1 into the spans of an attempt, and out of them."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from agentlightning.types.core import RolloutLegacy
from agl import emit_object, emit_reward, find_final_reward, get_object_value
from agl.algorithm.adapter import Triplet
from agl.types import Event, OtelResource, Rollout, Span, SpanCoreFields, TraceStatus

REPORT = "agentlightning.v01.report"
"""Attribute of the span that has a report."""
FAILED = "error"
"""Key of a report's metadata under which a runner of ours says what its agent raised."""

ToTriplets = Callable[[Sequence[Span]], list[Triplet]]


def report_spans(report: RolloutLegacy, rollout_id: str, attempt_id: str) -> list[Span]:
    """The spans by which a store keeps a report: those of its trace, the whole, the reward."""
    ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    spans = [_from_sdk(each, ids) for each in report.trace or () if _is_span(each)]
    spans.append(Span.from_core_fields(emit_report(report, propagate=False), **ids))
    reward = report.final_reward
    if reward is not None and find_final_reward(spans) != reward:  # else the trace has it
        spans.append(Span.from_core_fields(emit_reward(reward, propagate=False), **ids))
    return spans


def emit_report(report: RolloutLegacy, *, propagate: bool = True) -> SpanCoreFields:
    """Record a report, in the attempt that runs here or for one by hand."""
    kept = report.model_dump(mode="json")
    return emit_object(kept, attributes={REPORT: True}, propagate=propagate)


def report_of(rollout: Rollout, spans: Sequence[Span], to_triplets: ToTriplets) -> RolloutLegacy:
    """What is to be reported of a rollout that has ended, by the spans of its newest attempt.

    ``to_triplets`` is asked where no report has any.
    """
    reports = [span for span in spans if REPORT in span.attributes]
    others = [span for span in spans if REPORT not in span.attributes]
    said = get_object_value(reports[-1]) if reports else {"rollout_id": rollout.rollout_id}
    report = RolloutLegacy.model_validate(said)
    if report.final_reward is None:
        report.final_reward = find_final_reward(others)
    if report.triplets is None and others:
        report.triplets = to_triplets(others) or None
    if report.trace is None:
        report.trace = [_to_sdk(span) for span in others] or None
    error = getattr(getattr(rollout, "attempt", None), "error", None)
    if rollout.status != "succeeded":
        report.metadata.setdefault(
            FAILED, f"{error.type}: {error.message}" if error else rollout.status
        )
    return report


# --- the JSON of OpenTelemetry's SDK


def _to_sdk(span: Span) -> dict[str, Any]:
    """What ``json.loads(span.to_json())`` gives for a span of the SDK."""
    return {
        "name": span.name,
        "context": _context(span.trace_id, span.span_id),
        "kind": "SpanKind.INTERNAL",
        "parent_id": f"0x{span.parent_id}" if span.parent_id else None,
        "start_time": _to_text(span.start_time),
        "end_time": _to_text(span.end_time),
        "status": span.status.model_dump(exclude_none=True),
        "attributes": dict(span.attributes),
        "events": [
            {"name": e.name, "timestamp": _to_text(e.timestamp), "attributes": dict(e.attributes)}
            for e in span.events
        ],
        "links": [
            {
                "context": _context(link.context.trace_id, link.context.span_id),
                "attributes": dict(link.attributes or {}),
            }
            for link in span.links
        ],
        "resource": {
            "attributes": dict(span.resource.attributes),
            "schema_url": span.resource.schema_url,
        },
    }


def _context(trace_id: str, span_id: str) -> dict[str, str]:
    return {"trace_id": f"0x{trace_id}", "span_id": f"0x{span_id}", "trace_state": "[]"}


def _from_sdk(data: dict[str, Any], ids: dict[str, Any]) -> Span:
    """The reverse."""
    context, status = data["context"], data.get("status")
    resource = data.get("resource") or {}
    span = Span.from_attributes(
        **ids,
        name=str(data.get("name", "")),
        trace_id=_hex(context.get("trace_id")),
        span_id=_hex(context.get("span_id")),
        parent_id=_hex(data.get("parent_id")),
        start_time=_from_text(data.get("start_time")),
        end_time=_from_text(data.get("end_time")),
        attributes={key: _plain(value) for key, value in data["attributes"].items()},
        status=TraceStatus.model_validate(status) if isinstance(status, dict) else None,
        resource=OtelResource(
            attributes=resource.get("attributes") or {}, schema_url=resource.get("schema_url") or ""
        ),
    )
    events = [
        Event(
            name=str(event.get("name", "")),
            attributes={k: _plain(v) for k, v in (event.get("attributes") or {}).items()},
            timestamp=_from_text(event.get("timestamp")),
        )
        for event in data.get("events") or ()
    ]
    return span.model_copy(update={"events": events})


def _is_span(data: dict[str, Any]) -> bool:
    """Whether a dict is what it should be: an agent may report any."""
    return all(isinstance(data.get(key), dict) for key in ("context", "attributes"))


def _plain(value: Any) -> Any:
    """A value that an attribute may have."""
    plain = str | bool | int | float
    is_list = isinstance(value, list) and all(isinstance(each, plain) for each in value)
    return value if is_list or isinstance(value, plain) else json.dumps(value)


def _hex(identifier: str | None) -> str | None:
    return identifier.removeprefix("0x") if identifier else None


def _to_text(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _from_text(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() if moment else None
