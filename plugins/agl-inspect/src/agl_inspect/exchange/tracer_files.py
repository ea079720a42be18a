"""Files of Langfuse, Phoenix and MLflow as spans, which the dialect of each then reads.

Langfuse's traces and observations come as its API and its page give them, Phoenix's spans as its
client and its data frames do, and MLflow's traces as ``Trace.to_json`` writes them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agl.emitter import reward_attributes
from agl.errors import ConfigError
from agl.semconv import AGL_ANNOTATION
from agl.types import Attributes, Span, TraceStatus
from agl.utils.otel import to_attributes
from agl_inspect.exchange.recorded import as_object, errors_at, objects_of, seconds_of
from agl_inspect.exchange.traces import UNNAMED, ReadSpans

_OBSERVATION = {
    "input": "langfuse.observation.input",
    "output": "langfuse.observation.output",
    "model": "langfuse.observation.model.name",
    "providedModelName": "langfuse.observation.model.name",
    "sessionId": "session.id",
}
"""Fields of Langfuse's observations -> the attributes that its SDK writes."""


def read_langfuse(path: Path) -> Iterator[Span]:
    """Traces with their observations and scores, or observations alone, as Langfuse gives them.

    Raises:
        ConfigError: There are no observations.
    """
    for where, found in objects_of(path):
        trace = as_object(found.get("trace", found), where)
        listed = found.get("observations", trace.get("observations", found.get("data")))
        if listed is None and "traceId" in found:
            listed, trace = [found], {}
        if not isinstance(listed, list):
            raise ConfigError(
                f"{where}: expected a trace of Langfuse with 'observations', or an observation "
                f"with 'traceId'; got the keys {sorted(found)}"
            )
        with errors_at(where, "a trace of Langfuse"):
            session = {"sessionId": trace.get("sessionId")}
            spans = [_observation({**session, **as_object(one, where)}, where) for one in listed]
            scores = found.get("scores") or trace.get("scores") or ()
            spans += [
                _reward(score.get("traceId") or trace["id"], score["name"], score["value"], spans)
                for score in scores
                if isinstance(score.get("value"), int | float)
            ]
        yield from spans


def _observation(found: Mapping[str, Any], where: str) -> Span:
    attributes: Attributes = {"langfuse.observation.type": str(found.get("type")).lower()}
    for name, key in _OBSERVATION.items():
        if found.get(name) is not None:
            value = found[name]
            attributes[key] = value if isinstance(value, str) else json.dumps(value)
    error = (found.get("statusMessage") or "ERROR") if found.get("level") == "ERROR" else None
    ids = [_needed(found, name, where) for name in ("traceId", "id")]
    times = (found.get("startTime"), found.get("endTime"))
    return _span(ids, found.get("parentObservationId"), found.get("name"), times, attributes, error)


def read_phoenix(path: Path) -> Iterator[Span]:
    """Spans as Phoenix's client gives them, or the rows of its data frames.

    Raises:
        ConfigError: One has no ids.
    """
    for where, found in objects_of(path):
        rows = found["data"] if isinstance(found.get("data"), list) else [found]
        with errors_at(where, "spans of Phoenix"):
            spans = [_phoenix(row, where) for row in rows]
        yield from spans


def _phoenix(row: Mapping[str, Any], where: str) -> Span:
    found = {**row, **{f"context.{k}": v for k, v in (row.get("context") or {}).items()}}
    # A data frame has a column for each attribute.
    prefix = "attributes."
    own = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
    attributes = to_attributes(_without_none({**(row.get("attributes") or {}), **own}))
    attributes.setdefault("openinference.span.kind", str(row.get("span_kind", "UNKNOWN")))
    ids = [_needed(found, name, where) for name in ("context.trace_id", "context.span_id")]
    error = (row.get("status_message") or "ERROR") if row.get("status_code") == "ERROR" else None
    times = (row.get("start_time"), row.get("end_time"))
    return _span(ids, row.get("parent_id"), row.get("name"), times, attributes, error)


def read_mlflow(path: Path) -> Iterator[Span]:
    """Traces as MLflow's ``Trace.to_json`` writes them, with their assessments as rewards.

    Raises:
        ConfigError: One has no spans.
    """
    for where, found in objects_of(path):
        spans = (found.get("data") or {}).get("spans")
        if not isinstance(spans, list):
            raise ConfigError(
                f"{where}: expected a trace of MLflow with 'info' and 'data.spans'; got the keys "
                f"{sorted(found)}"
            )
        with errors_at(where, "a trace of MLflow"):
            info = found.get("info") or {}
            trace_id = str(info.get("trace_id") or spans[0]["trace_id"])
            session = (info.get("trace_metadata") or {}).get("mlflow.trace.session")
            read = [_mlflow(span, trace_id, session, where) for span in spans]
            read += [
                _reward(trace_id, said["assessment_name"], value, read)
                for said in info.get("assessments") or ()
                if isinstance(value := (said.get("feedback") or {}).get("value"), int | float)
            ]
        yield from read


def _mlflow(span: Mapping[str, Any], trace_id: str, session: str | None, where: str) -> Span:
    about = {"mlflow.trace.session": session, **(span.get("attributes") or {})}
    status = span.get("status") or {}
    failed = str(status.get("code")).endswith("ERROR")
    error = (status.get("message") or "ERROR") if failed else None
    times = (span.get("start_time_unix_nano"), span.get("end_time_unix_nano"))
    ids = [trace_id, _needed(span, "span_id", where)]
    attributes = to_attributes(_without_none(about))
    return _span(ids, span.get("parent_span_id"), span.get("name"), times, attributes, error)


READERS: dict[str, ReadSpans] = {
    "langfuse": read_langfuse,
    "phoenix": read_phoenix,
    "mlflow": read_mlflow,
}


def _span(
    ids: list[str],
    parent: str | None,
    name: str | None,
    times: tuple[Any, Any],
    attributes: Attributes,
    error: str | None,
) -> Span:
    trace_id, span_id = ids
    return Span.from_attributes(
        rollout_id=trace_id,
        attempt_id=UNNAMED,
        trace_id=_hex(trace_id, 32),
        span_id=_hex(span_id, 16),
        parent_id=_hex(parent, 16) if parent else None,
        name=name or "span",
        start_time=seconds_of(times[0]),
        end_time=seconds_of(times[1]),
        attributes=attributes,
        status=TraceStatus(status_code="ERROR" if error else "OK", description=error),
    )


def _reward(trace_id: str, name: str, value: float, spans: list[Span]) -> Span:
    """A reward, given after all that the file has of its trace."""
    end = max((span.end_time or span.start_time or 0.0 for span in spans), default=0.0) + 1e-3
    return Span.from_attributes(
        name=AGL_ANNOTATION,
        rollout_id=trace_id,
        attempt_id=UNNAMED,
        trace_id=_hex(trace_id, 32),
        span_id=_hex(f"{trace_id} {name} {value}", 16),
        attributes=reward_attributes({name: float(value)}, name),
        start_time=end,
        end_time=end,
    )


def _needed(found: Mapping[str, Any], name: str, where: str) -> str:
    if not found.get(name):
        raise ConfigError(f"{where}: expected {name!r}; got the keys {sorted(found)}")
    return str(found[name])


def _hex(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
