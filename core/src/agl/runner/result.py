"""What an agent call came to: its outcome, the spans in its result, the failure to store."""

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from agl.agent import MissingResourceError
from agl.emitter import reward_attributes
from agl.errors import AgentResultError
from agl.semconv import AGL_ANNOTATION
from agl.types import (
    UNASSIGNED,
    Attempt,
    Failure,
    Span,
    SpanCoreFields,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Boundary = Literal["agent", "timeout", "tracer", "cancelled", "lost", "resources"]
"""The boundaries of ``Failure`` that a runner can tell."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt went."""

    result: Any = None
    error: BaseException | None = None
    boundary: Boundary = "agent"
    """Where ``error`` came from."""
    stuck: bool = False
    """The agent did not return when it had to, and may still be running."""

    @property
    def status(self) -> Literal["succeeded", "failed", "timeout"]:
        """The attempt's final status."""
        if self.error is None:
            return "succeeded"
        return "timeout" if self.boundary == "timeout" else "failed"

    def failure(self) -> Failure | None:
        """What is stored with the attempt."""
        error = self.error
        if error is None:
            return None
        kind = type(error)
        builtin = kind.__module__ == "builtins"
        return Failure(
            boundary="resources" if isinstance(error, MissingResourceError) else self.boundary,
            type=kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}",
            message=str(error) or repr(error),
            traceback="".join(traceback.format_exception(error)),
        )


def spans_of_result(result: Any, attempt: Attempt, trace_id: str | None) -> list[Span]:
    """The spans to store for what an agent returned.

    Args:
        result: None, a number, or a list of spans.
        attempt: Whose result it is.
        trace_id: Of the attempt's trace; None makes a new one.

    Returns:
        A reward span for a number; the spans of a list, made spans of this attempt.

    Raises:
        AgentResultError: It is something else, a number that is not finite, or a span of another
            rollout.
    """
    if result is None:
        return []
    if isinstance(result, list):
        return [_span_of(item, attempt) for item in cast(list[Any], result)]
    try:
        attributes = reward_attributes(result)
    except (TypeError, ValueError) as error:
        raise AgentResultError(
            f"the agent returned {_describe(result)}; expected None, a finite number (the final "
            f"reward), or a list of Span, SpanCoreFields or OpenTelemetry's ReadableSpan: {error}"
        ) from None
    return [
        Span.from_attributes(
            attributes=attributes,
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            name=AGL_ANNOTATION,
            trace_id=trace_id,
        )
    ]


def _span_of(item: Any, attempt: Attempt) -> Span:
    ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}
    if isinstance(item, Span):
        for key, own in ids.items():
            given = getattr(item, key)
            if given not in ("", own):
                raise AgentResultError(
                    f"the agent returned span {item.name!r} with {key} {given!r}; expected "
                    f"{own!r}, or '' to have it filled in"
                )
        return item.model_copy(update=ids)
    if isinstance(item, SpanCoreFields):
        return Span.from_core_fields(
            item, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id
        )
    from opentelemetry.sdk.trace import ReadableSpan

    if isinstance(item, ReadableSpan):
        return _from_readable(item, ids)
    raise AgentResultError(
        f"the agent returned a list with {_describe(item)} in it; expected only Span, "
        "SpanCoreFields or OpenTelemetry's ReadableSpan"
    )


def _from_readable(span: "ReadableSpan", ids: dict[str, str]) -> Span:
    try:
        return Span.from_opentelemetry(span, sequence_id=UNASSIGNED, **ids)
    except ValueError as error:
        raise AgentResultError(
            f"the agent returned a span that cannot be stored: {error}"
        ) from None


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
