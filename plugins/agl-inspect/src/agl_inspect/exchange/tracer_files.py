"""Files of Langfuse, Phoenix and MLflow as spans, which the dialect of each then reads.

Langfuse's traces and observations come as its API and its page give them, Phoenix's spans as its
client and its data frames do, and MLflow's traces as ``Trace.to_json`` writes them. Which of their
scores is the reward is not theirs to say: see ``with_rewards``.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agl.emitter import reward_attributes
from agl.errors import ConfigError
from agl.semconv import AGL_ANNOTATION
from agl.types import Attributes, Span, TraceStatus
from agl.utils.otel import make_link_attributes, to_attributes
from agl_inspect.exchange.importer import hex_id
from agl_inspect.exchange.recorded import as_object, errors_at, objects_of, seconds_of
from agl_inspect.exchange.traces import UNNAMED, ReadSpans


@dataclass(frozen=True)
class Score:
    """How good a trace, an observation of it or a conversation was found."""

    name: str
    value: Any
    kind: str
    """``NUMERIC``, ``BOOLEAN``, or why it is no reward."""
    rollout_id: str
    """The trace or the conversation."""
    span_id: str | None
    """In the file's terms, where it is about one span."""
    time: float | None
    """When that had ended; None if it is not known, or a conversation."""


ReadTraces = Callable[[Path], Iterator[Span | Score]]


_LANGFUSE = (
    *("traceId", "id", "parentObservationId"),
    *("startTime", "endTime", "level", "statusMessage"),
)
_PHOENIX = (
    *("context.trace_id", "context.span_id", "parent_id"),
    *("start_time", "end_time", "status_code", "status_message"),
)
_MLFLOW = (
    *("trace_id", "span_id", "parent_span_id"),
    *("start_time_unix_nano", "end_time_unix_nano", "code", "message"),
)
"""Where each has of a span its trace, id, parent, begin, end, status, and what that says."""
_OBSERVATION = {
    "input": "langfuse.observation.input",
    "output": "langfuse.observation.output",
    "model": "langfuse.observation.model.name",
    "providedModelName": "langfuse.observation.model.name",
    "sessionId": "session.id",
}
"""Fields of Langfuse's observations -> the attributes that its SDK writes."""


def _langfuse(found: dict[str, Any], where: str) -> Iterator[Span | Score]:
    """A trace with its observations and scores, or observations alone, as Langfuse gives them."""
    trace = as_object(found.get("trace", found), where)
    listed = found.get("observations", trace.get("observations", found.get("data")))
    if listed is None and "traceId" in found:
        listed, trace = [found], {}
    if not isinstance(listed, list):
        raise ConfigError(
            f"{where}: expected a trace of Langfuse with 'observations', or an observation "
            f"with 'traceId'; got the keys {sorted(found)}"
        )
    session = {"sessionId": trace.get("sessionId")}
    name = f"{where}: observations"
    spans = _each(name, listed, lambda one, at: _observation({**session, **one}, at))
    yield from spans

    def score(one: dict[str, Any], at: str) -> Score:
        about = one.get("traceId") or one.get("sessionId") or trace.get("id")
        if not one.get("name") or not about:
            raise ConfigError(f"{at}: expected 'name' and 'traceId'; got the keys {sorted(one)}")
        return _score(
            [] if one.get("sessionId") and not one.get("traceId") else spans,
            one["name"],
            one.get("value"),
            about,
            one.get("observationId"),
            one.get("dataType"),
        )

    yield from _each(f"{where}: scores", found.get("scores") or trace.get("scores") or (), score)


T = TypeVar("T")


def _each(name: str, listed: Sequence[Any], read: Callable[[dict[str, Any], str], T]) -> list[T]:
    """What each of a list is read as; an error names which it was."""
    found: list[T] = []
    for number, one in enumerate(listed):
        at = f"{name}[{number}]"
        with errors_at(at, "a score or an observation of Langfuse"):
            found.append(read(as_object(one, at), at))
    return found


def _observation(found: Mapping[str, Any], where: str) -> Span:
    attributes: Attributes = {"langfuse.observation.type": str(found.get("type")).lower()}
    for name, key in _OBSERVATION.items():
        if found.get(name) is not None:
            value = found[name]
            attributes[key] = value if isinstance(value, str) else json.dumps(value)
    return _span(found, _LANGFUSE, attributes, where)


def _phoenix(found: dict[str, Any], where: str) -> Iterator[Span]:
    """A span as Phoenix's client gives it, or the rows of its data frames."""
    prefix = "attributes."  # a data frame has a column for each attribute
    for row in found["data"] if isinstance(found.get("data"), list) else [found]:
        context = {f"context.{k}": v for k, v in (row.get("context") or {}).items()}
        own = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        attributes = to_attributes(_without_none({**(row.get("attributes") or {}), **own}))
        attributes.setdefault("openinference.span.kind", str(row.get("span_kind", "UNKNOWN")))
        yield _span({**row, **context}, _PHOENIX, attributes, where)


def _mlflow(found: dict[str, Any], where: str) -> Iterator[Span | Score]:
    """A trace as MLflow's ``Trace.to_json`` writes it, with its assessments as scores."""
    listed = (found.get("data") or {}).get("spans")
    if not isinstance(listed, list):
        raise ConfigError(
            f"{where}: expected a trace of MLflow with 'info' and 'data.spans'; got the keys "
            f"{sorted(found)}"
        )
    info = found.get("info") or {}
    trace_id = str(info.get("trace_id") or listed[0]["trace_id"])
    session = (info.get("trace_metadata") or {}).get("mlflow.trace.session")
    spans = [_mlflow_span(span, trace_id, session, where) for span in listed]
    yield from spans
    for said in info.get("assessments") or ():
        # Another has taken the place of one that is not valid.
        if (feedback := said.get("feedback")) and said.get("valid") is not False:
            name, value = said["assessment_name"], feedback.get("value")
            yield _score(spans, name, value, trace_id, said.get("span_id"))


def _mlflow_span(span: Mapping[str, Any], trace_id: str, session: str | None, where: str) -> Span:
    about = {"mlflow.trace.session": session, **(span.get("attributes") or {})}
    found = {**span, **(span.get("status") or {}), "trace_id": trace_id}
    return _span(found, _MLFLOW, to_attributes(_without_none(about)), where)


def _reader(
    form: str, items: Callable[[dict[str, Any], str], Iterator[Span | Score]]
) -> ReadTraces:
    """Reads a file of objects; of one that is wrong nothing, but a ``ConfigError``."""

    def read(path: Path) -> Iterator[Span | Score]:
        for where, found in objects_of(path):
            with errors_at(where, form):
                read_items = list(items(found, where))
            yield from read_items

    return read


READERS: dict[str, ReadTraces] = {
    "langfuse": _reader("a trace of Langfuse", _langfuse),
    "phoenix": _reader("spans of Phoenix", _phoenix),
    "mlflow": _reader("a trace of MLflow", _mlflow),
}


def with_rewards(path: Path, read: ReadTraces, name: str | None) -> tuple[ReadSpans, list[str]]:
    """A reader of a file's spans and rewards, and what to say of the scores that are none.

    Numbers are rewards if all of the file have one name; booleans, and numbers of several names,
    if it is said which.
    """
    found = Counter((one.name, one.kind) for one in read(path) if isinstance(one, Score))
    numbers = [named for named, kind in found if kind == "NUMERIC"]
    taken = name if name is not None or len(numbers) != 1 else numbers[0]
    kinds = ("NUMERIC", "BOOLEAN") if name is not None else ("NUMERIC",)

    def spans(path: Path) -> Iterator[Span]:
        latest, last = 0.0, list[Score]()
        for one in read(path):
            if isinstance(one, Span):
                latest = max(latest, one.end_time or one.start_time or 0.0)
                yield one
            elif one.name == taken and one.kind in kinds:
                if one.time is None:
                    last.append(one)
                else:
                    yield _reward(one, one.time)
        for one in last:
            yield _reward(one, latest + 2e-3)

    missing = name is not None and name not in {named for named, _ in found}
    remarks = [f"no score of {path} is named {name!r}"] * missing
    left = [f"{n} {one!r} ({k})" for (one, k), n in found.items() if one != taken or k not in kinds]
    if left:
        remarks.append(
            f"scores of {path} that are no rewards: {', '.join(left)}. --reward NAME takes the "
            "numbers and booleans of one name"
        )
    return spans, remarks


def _span(
    found: Mapping[str, Any], keys: Sequence[str], attributes: Attributes, where: str
) -> Span:
    for name in keys[:2]:
        if not found.get(name):
            raise ConfigError(f"{where}: expected {name!r}; got the keys {sorted(found)}")
    trace_id, span_id = (str(found[name]) for name in keys[:2])
    parent, begin, end, status, message = (found.get(name) for name in keys[2:])
    failed = str(status).endswith("ERROR")
    return Span.from_attributes(
        rollout_id=trace_id,
        attempt_id=UNNAMED,
        trace_id=hex_id(trace_id, 32),
        span_id=hex_id(span_id),
        parent_id=hex_id(parent) if parent else None,
        name=found.get("name") or "span",
        start_time=seconds_of(begin),
        end_time=seconds_of(end),
        attributes=attributes,
        status=TraceStatus(
            status_code="ERROR" if failed else "OK",
            description=(message or "ERROR") if failed else None,
        ),
    )


def _score(
    spans: Sequence[Span],
    name: str,
    value: Any,
    rollout_id: str,
    span_id: str | None,
    kind: str | None = None,
) -> Score:
    """A score, given after those of these spans that it is about."""
    own = None if span_id is None else hex_id(span_id)
    ends = [s.end_time or s.start_time or 0.0 for s in spans if own in (None, s.span_id)]
    # Langfuse has booleans as 0 and 1, and a number beside each category.
    if own and not ends:
        kind = "of a span that is not here"
    elif isinstance(value, int | float) and not math.isfinite(value):
        kind = "not finite"
    elif not isinstance(value, int | float) and kind in (None, "NUMERIC", "BOOLEAN"):
        kind = "TEXT"
    kind = kind or ("BOOLEAN" if isinstance(value, bool) else "NUMERIC")
    return Score(name, value, kind, rollout_id, own, max(ends) + 1e-3 if ends else None)


def _reward(score: Score, time: float) -> Span:
    attributes = reward_attributes({score.name: float(score.value)}, score.name)
    if score.span_id is not None:
        attributes |= make_link_attributes({"span_id": score.span_id})
    about = f"{score.rollout_id} {score.name} {score.value} {score.span_id or ''}".rstrip()
    return Span.from_attributes(
        name=AGL_ANNOTATION,
        rollout_id=score.rollout_id,
        attempt_id=UNNAMED,
        trace_id=hex_id(score.rollout_id, 32),
        span_id=hex_id(about),
        attributes=attributes,
        start_time=time,
        end_time=time,
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
