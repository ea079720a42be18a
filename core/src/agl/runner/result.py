"""What an agent call came to: its outcome, the spans in its result, the failure to store."""

import inspect
import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agl.agent.injection import MissingResourceError
from agl.emitter import reward_attributes
from agl.errors import AgentResultError, AglError
from agl.semconv import AGL_ANNOTATION
from agl.store.base import AttemptEnd
from agl.store.packed import storable
from agl.types import UNASSIGNED, Attempt, Attributes, Failure, Span, SpanCoreFields
from agl.types.records import Boundary
from agl.utils.secrets import hide
from agl.utils.text import capped, clean, describe, full_name_of, parse_json, shorten

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_ARTEFACT_BYTES = 16 * 1024 * 1024
"""Of the JSON of what an agent returns for its grader."""


@dataclass(frozen=True)
class Artefact:
    """What an agent returned for its grader."""

    text: str
    """JSON."""


ReadResult = Attributes | Sequence[Span] | Artefact
"""A result without anything of the agent's own classes: the attributes of its reward, spans, or
what is to be graded."""


class SandboxedAgentError(AglError, RuntimeError):
    """Stands for what an agent raised in a sandbox.

    Args:
        failure: What is stored with the attempt.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.type}: {failure.message}")
        self.failure = failure

    def __reduce__(self) -> Any:
        return SandboxedAgentError, (self.failure,)


@dataclass(eq=False, repr=False)
class Outcome:
    """How an attempt went. To be made where the agent ran: its error is asked for its text."""

    result: ReadResult = ()
    error: BaseException | None = None
    boundary: Boundary = "agent"
    """Where ``error`` came from."""
    stuck: bool = False
    """The agent did not return when it had to, and may still be running."""
    failure: Failure | None = field(init=False)
    """What is stored with the attempt."""

    def __post_init__(self) -> None:
        self.failure = None if self.error is None else _failure_of(self.error, self.boundary)

    @property
    def status(self) -> Literal["succeeded", "failed", "timeout"]:
        """The attempt's final status."""
        if self.error is None:
            return "succeeded"
        return "timeout" if self.boundary == "timeout" else "failed"

    def end(self, attempt: Attempt) -> AttemptEnd:
        """What the store is told of the attempt."""
        about = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}
        return AttemptEnd(**about, status=self.status, error=self.failure)

    def spans(self, attempt: Attempt, trace_id: str | None) -> list[Span]:
        """The spans to store for the result.

        Args:
            attempt: Whose result it is.
            trace_id: Of the attempt's trace; None makes a new one for a reward.
        """
        if isinstance(self.result, Artefact):
            return []
        if not isinstance(self.result, dict):
            return list(self.result)
        span = Span.from_attributes(
            attributes=self.result,
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            name=AGL_ANNOTATION,
            trace_id=trace_id,
        )
        now = time.time()
        return [span.changed(writer="runner", start_time=now, end_time=now)]


def _failure_of(error: BaseException, boundary: Boundary) -> Failure:
    """What is stored, without keys: a provider repeats a wrong key in its refusal."""
    if isinstance(error, SandboxedAgentError):
        failure = error.failure
        trace = failure.traceback
    else:
        if isinstance(error, MissingResourceError):
            boundary = "resources"
        kind = clean(full_name_of(type(error)))
        failure = Failure(boundary=boundary, type=kind, message=describe(error))
        trace = clean(capped("".join(traceback.format_exception(error))))
    return failure.changed(message=hide(failure.message), traceback=trace and hide(trace))


def read_result(result: Any, attempt: Attempt, *, is_graded: bool = False) -> ReadResult:
    """What an agent returned, without anything of its own classes.

    Args:
        result: None, a number, or a list of spans; for a grader, whatever JSON can hold.
        attempt: Whose result it is.
        is_graded: Whether it is for a grader.

    Returns:
        The attributes of the reward for a number; the spans of a list, made spans of this attempt.
        For a grader, its JSON.

    Raises:
        AgentResultError: It is something else, a number that is not finite, or a span of another
            rollout; or its JSON is too long.
        InvalidRecordError: A span that no store keeps.
    """
    return _artefact(result) if is_graded else _read(result, attempt)


def _read(result: Any, attempt: Attempt) -> ReadResult:
    if result is None:
        return ()
    if isinstance(result, list):
        return [storable(_span_of(item, attempt)) for item in cast(list[Any], result)]
    try:
        return reward_attributes(result)
    except (TypeError, ValueError) as error:
        raise AgentResultError(
            f"the agent returned {_describe(result)}; expected None, a finite number (the final "
            "reward), or a list of Span, SpanCoreFields or OpenTelemetry's ReadableSpan: "
            f"{describe(error)}"
        ) from None


def _artefact(result: Any) -> Artefact:
    try:
        text = json.dumps(to_jsonable_python(result), allow_nan=False)
        parse_json(text)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise AgentResultError(
            f"the agent returned {_describe(result)} for its grader; expected what JSON can hold, "
            f"without NaN and infinity: {describe(error)}"
        ) from None
    if len(text) > MAX_ARTEFACT_BYTES:
        raise AgentResultError(
            f"the agent returned {len(text)} bytes of JSON for its grader; at most "
            f"{MAX_ARTEFACT_BYTES} (16 MiB) are taken. Return what is needed to grade, and no more"
        )
    return Artefact(text)


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
        return item.model_copy(update={**ids, "writer": "agent", "late": False})
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
    hint = "; did you forget await?" if inspect.iscoroutine(value) else ""
    return f"{shorten(clean(repr(value)))} ({type(value).__qualname__}){hint}"
