"""An attempt as a trace of OpenTelemetry's: a span for the attempt, and under it what it did."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agl.emitter import get_rewards_from_span
from agl.semconv import (
    LightningResourceAttributes as Ids,
    LightningSpanAttributes as Own,
    ModelCallAttributes as Key,
)
from agl.types import Attempt, Attributes, Rollout, Span, public_failure, without_private
from agl.types.spans import RewardDimension
from agl.utils.json_values import to_json_text
from agl.utils.rewards import find_final_rewards
from agl_records.calls.reader import recorded_calls
from agl_records.calls.sources import looks_like_call
from agl_records.calls.span_tree import in_time
from agl_records.training_data import ModelCall
from agl_trackers.conventions import CONVERSATION, KIND, SESSION, call_attributes, clean, text_of
from agl_trackers.records import shown

TOKENS = (
    Key.PROMPT_TOKEN_IDS.value,
    Key.RESPONSE_TOKEN_IDS.value,
    Key.RESPONSE_LOGPROBS.value,
    Key.CHOICE.value,
)
"""Keys, or beginnings of them, of what is left out: as much as all the rest, and not for people."""
OF_CALLS = ("llm.", "gen_ai.usage.", "gen_ai.input.", "gen_ai.output.", "input.", "output.")
"""What is taken from a second record of a call, whose tokens would count twice."""
AGENTS = ("invoke_agent", "create_agent")


@dataclass(frozen=True)
class Trace:
    """What is sent of one attempt."""

    spans: list[ReadableSpan]
    root_id: str
    """Of the span that stands for the attempt, in hex."""
    rewards: list[RewardDimension]
    """The final ones."""


def trace_of(
    rollout: Rollout, attempt: Attempt, spans: Sequence[Span], resource: Resource
) -> Trace:
    """An attempt as it is sent.

    Its spans keep their ids, get one trace (that of the first), and those without a parent among
    them the attempt's span as theirs. Secrets, and what of the task is not for agents, are left
    out.

    Args:
        attempt: The attempt; it has ended.
        spans: Of the attempt, as stored.
    """
    spans = in_time(spans)
    identity = sha256(f"{rollout.rollout_id}/{attempt.attempt_id}".encode()).hexdigest()
    root_id = identity[:16]
    trace_id = int(spans[0].trace_id if spans else identity[:32], 16)
    known = {span.span_id for span in spans}
    # By the span that is the best record of a call; None where that cannot be read.
    calls = {
        one.call.call_id: one.call if one.malformed is None else None
        for one in recorded_calls(spans)
    }
    # Of one that did not succeed no reward counts; its spans have those given on the way.
    rewards = find_final_rewards(spans) if attempt.status == "succeeded" else []
    told = {
        SESSION: rollout.rollout_id,
        Ids.ROLLOUT_ID.value: rollout.rollout_id,
        Ids.ATTEMPT_ID.value: attempt.attempt_id,
    }

    def made(span_id: str, **fields: Any) -> ReadableSpan:
        return ReadableSpan(context=_context(trace_id, span_id), resource=resource, **fields)

    end = attempt.end_time or max((s.end_time or 0.0 for s in spans), default=attempt.start_time)
    used = [call for call in calls.values() if call is not None]
    failure = public_failure(attempt.error)
    sent = [
        made(
            root_id,
            name="rollout",
            kind=SpanKind.INTERNAL,
            attributes=told | _of_attempt(rollout, attempt, used) | _evaluations(rewards),
            events=[*_evaluation_events(rewards, end), *_exception(attempt, end)],
            status=Status(StatusCode.OK)
            if failure is None
            else Status(StatusCode.ERROR, shown(f"{failure.boundary}: {failure.message}")),
            start_time=_nanoseconds(attempt.start_time),
            end_time=_nanoseconds(max(end, attempt.start_time)),
        )
    ]
    for span in spans:
        start = span.start_time or attempt.start_time
        call = calls.get(span.span_id)
        parent = span.parent_id if span.parent_id in known else root_id
        sent.append(
            made(
                span.span_id,
                name=_name(span, call),
                parent=_context(trace_id, parent),
                kind=SpanKind.INTERNAL if call is None else SpanKind.CLIENT,
                attributes=_attributes(span, calls, spans) | told,
                events=list(_events(span)),
                links=[
                    Link(_context(int(link.context.trace_id, 16), link.context.span_id))
                    for link in span.links
                ],
                status=_status(span),
                start_time=_nanoseconds(start),
                end_time=_nanoseconds(max(span.end_time or start, start)),
            )
        )
    return Trace(sent, root_id, rewards)


def _name(span: Span, call: ModelCall | None) -> str:
    if call is not None:
        return f"chat {call.model or call.requested_model or ''}".strip()
    return str(span.attributes.get(Own.OPERATION_NAME.value) or span.name)


def _attributes(
    span: Span, calls: Mapping[str, ModelCall | None], spans: Sequence[Span]
) -> Attributes:
    found = {
        key: clean(value) for key, value in span.attributes.items() if not key.startswith(TOKENS)
    }
    call = calls.get(span.span_id)
    if call is not None:
        others = [one for one in spans if one.span_id != span.span_id and call.response_id]
        key = Key.RESPONSE_ID.value
        same = [one for one in others if one.attributes.get(key) == call.response_id]
        with suppress(ValueError, TypeError, LookupError, AttributeError):
            return found | call_attributes(call, [span, *same]) | {CONVERSATION: call.rollout_id}
    if span.span_id in calls:
        return {**found, KIND: "LLM"}  # of no form that is known: as it was
    if looks_like_call(span):  # another record of a call
        found = {key: value for key, value in found.items() if not key.startswith(OF_CALLS)}
        return {**found, KIND: "CHAIN"}
    if rewards := get_rewards_from_span(span):
        return {**found, **_evaluations(rewards), KIND: "EVALUATOR"}
    for key, own in (("input.value", Own.OPERATION_INPUT), ("output.value", Own.OPERATION_OUTPUT)):
        if own.value in found:
            found.setdefault(key, found[own.value])
    found.setdefault(KIND, _kind(found))
    return found


def _kind(attributes: Attributes) -> str:
    operation = attributes.get(Key.OPERATION.value)
    if operation == "execute_tool" or "tool.name" in attributes:
        return "TOOL"
    return "AGENT" if operation in AGENTS else "CHAIN"


def _of_attempt(rollout: Rollout, attempt: Attempt, calls: Sequence[ModelCall]) -> Attributes:
    task = without_private(rollout.input)
    last = next((one.response for one in reversed(calls) if one.response is not None), None)
    about = {
        **(rollout.metadata or {}),
        "mode": rollout.mode,
        "status": rollout.status,
        "attempt": attempt.sequence_id,
        "resources_id": rollout.resources_id,
    }
    found: Attributes = {
        KIND: "AGENT",
        Key.OPERATION.value: "invoke_agent",
        CONVERSATION: rollout.rollout_id,
        "input.value": shown(task if isinstance(task, str) else to_json_text(task)),
        "input.mime_type": "text/plain" if isinstance(task, str) else "application/json",
        "metadata": shown(to_json_text({k: v for k, v in about.items() if v is not None})),
    }
    if last is not None:
        found["output.value"] = shown(text_of(last))
    return found


def _evaluations(rewards: Iterable[RewardDimension]) -> Attributes:
    """Rewards as OpenInference's evaluations."""
    found: Attributes = {}
    for number, reward in enumerate(rewards):
        at = f"evaluations.{number}.evaluation"
        found[f"{at}.name"] = reward.name
        found[f"{at}.score"] = float(reward.value)
        found[f"{at}.annotator_kind"] = "CODE"
    return found


def _evaluation_events(rewards: Iterable[RewardDimension], moment: float) -> Iterator[Event]:
    """Rewards as events of GenAI."""
    for reward in rewards:
        about = {
            "gen_ai.evaluation.name": reward.name,
            "gen_ai.evaluation.score.value": float(reward.value),
        }
        yield Event("gen_ai.evaluation.result", about, _nanoseconds(moment))


def _exception(attempt: Attempt, moment: float) -> Iterator[Event]:
    failure = public_failure(attempt.error)
    if failure is not None:
        about = {
            "exception.type": failure.type,
            "exception.message": shown(failure.message),
            "exception.stacktrace": shown(failure.traceback or ""),
        }
        yield Event("exception", about, _nanoseconds(moment))


def _events(span: Span) -> Iterator[Event]:
    for event in span.events:
        about = {key: clean(value) for key, value in event.attributes.items()}
        moment = event.timestamp or span.end_time or span.start_time or 0.0
        yield Event(event.name, about, _nanoseconds(moment))


def _status(span: Span) -> Status:
    code, text = StatusCode[span.status.status_code], span.status.description
    return Status(code, shown(text) if text and code is StatusCode.ERROR else None)


def _context(trace_id: int, span_id: str) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
