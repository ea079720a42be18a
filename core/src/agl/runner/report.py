"""Report: what a call of an agent came to, its spans, and the end of its attempt in the store."""

import inspect
import json
import logging
import reprlib
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agl.agent.function import MissingResourceError
from agl.emitter import reward_attributes
from agl.errors import AgentResultError, AglError, InvalidRecordError, InvalidTransitionError
from agl.runner.claims import Claims
from agl.semconv import AGL_ANNOTATION, LightningSpanAttributes as Key
from agl.store.base import AttemptEnd, LightningStore, Turn
from agl.store.forwarding import StandInStore
from agl.store.span_checks import add_accepted, is_refusal, storable
from agl.types import (
    UNASSIGNED,
    Attempt,
    AttemptedRollout,
    Attributes,
    Failure,
    Span,
    SpanCoreFields,
)
from agl.types.records import Boundary
from agl.utils.json_values import parse_json
from agl.utils.secrets import hide
from agl.utils.text import capped, clean, describe, full_name_of, shorten

logger = logging.getLogger(__name__)

_REPR = reprlib.Repr()  # goes six levels deep: Python's own fails on what an agent may return
_REPR.maxstring = _REPR.maxother = 80
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
    """Stands for what an agent raised in a sandbox."""

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
        """The spans to store for the result; a reward without a ``trace_id`` gets a new trace."""
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


def read_result(result: Any, attempt: Attempt, *, is_graded: bool = False) -> Outcome:
    """What an agent returned, without anything of its own classes; or that no store keeps it.

    Args:
        result: None, a number, a dict of them, or a list of spans; for a grader, any JSON value.

    Returns:
        The attributes of rewards for numbers; the spans of a list, made spans of this attempt.
        For a grader, its JSON.

    Raises:
        AgentResultError: It is something else, not finite, of another rollout, or too long.
    """
    try:
        return Outcome(result=_artefact(result) if is_graded else _read(result, attempt))
    except InvalidRecordError as error:
        return Outcome(error=error, boundary="store")


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
            "reward), a dict of them (the final one first), or a list of Span, SpanCoreFields or "
            "OpenTelemetry's ReadableSpan: "
            f"{describe(error)}"
        ) from None


def _artefact(result: Any) -> Artefact:
    try:
        text = json.dumps(to_jsonable_python(result), allow_nan=False)
        parse_json("[" * 10 + text + "]" * 10)  # a message around it, and a span, go deeper
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
        try:
            return Span.from_opentelemetry(item, sequence_id=UNASSIGNED, **ids)
        except ValueError as error:
            message = f"the agent returned a span that cannot be stored: {error}"
            raise AgentResultError(message) from None
    raise AgentResultError(
        f"the agent returned a list with {_describe(item)} in it; expected only Span, "
        "SpanCoreFields or OpenTelemetry's ReadableSpan"
    )


def _describe(value: Any) -> str:
    hint = "; did you forget await?" if inspect.iscoroutine(value) else ""
    return f"{shorten(clean(_REPR.repr(value)))} ({type(value).__qualname__}){hint}"


class AttemptStore(StandInStore):
    """The store as the tracer of one attempt sees it; it also stores the end of the attempt.

    Spans go to the store in order with the model calls of the attempt; ``place`` is
    ``GatewayClient.wait_for_earlier_calls``.
    """

    def __init__(
        self,
        store: LightningStore,
        rollout: AttemptedRollout,
        place: Callable[..., Awaitable[tuple[int, bool]]],
    ) -> None:
        super().__init__(store)
        self._attempt = rollout.attempt
        self._place = place
        self.is_holding = False
        """Whether the agent has ended, so that new spans wait here for the final status."""
        self._held: list[Span] = []
        """Those that are to be stored yet, in their order."""
        self.received: list[Span] = []
        """Those that came from a sandbox; no tracer of this process knows them."""

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        spans = [one if one.writer else one.changed(writer="agent") for one in spans]
        if self.is_holding:
            self._held += spans
            return spans
        added: list[Span] = []
        while spans:
            count, in_order = await self._place(spans)
            added += await self._store.add_many_spans(_placed(spans[:count], in_order))
            spans = spans[count:]
        return added

    add_span = LightningStore.add_span
    add_otel_span = LightningStore.add_otel_span

    async def add_before_calls(self, outcome: Outcome) -> Outcome:
        """Store the last spans that came before a model call; the others go with the status."""
        while self._held:
            count, in_order = await self._place(self._held, at_end=True)
            self._held[:count] = _placed(self._held[:count], in_order)
            if count > len(self._held):
                break
            _, outcome = await self._add(self._held[:count], outcome)
            del self._held[:count]
        return outcome

    async def add_held(self, outcome: Outcome) -> tuple[list[Span], Outcome]:
        """Store the spans that are kept; also how the attempt went if the store refused some."""
        held, self._held = self._held, []
        return await self._add(held, outcome)

    async def _add(self, spans: list[Span], outcome: Outcome) -> tuple[list[Span], Outcome]:
        """Store those spans that the store takes; of a success, a refusal makes a failure."""
        added, refused = await add_accepted(self._store.add_many_spans, spans)
        if refused and not outcome.error:
            outcome = Outcome(error=refused[0], boundary="store")
        return added, outcome

    async def end(self, outcome: Outcome, claims: Claims, *, more: bool) -> tuple[Turn, Outcome]:
        """Store the last spans and the final status, and claim the next rollout.

        Returns:
            What the store answers; and how the attempt went, also if the store refused a span.
        """
        attempt = self._attempt
        try:
            try:
                return await claims.turn(self._held, outcome.end(attempt), more=more), outcome
            except Exception as error:
                if not is_refusal(error):
                    raise
            added, outcome = await self.add_held(outcome)
            done = await claims.turn([], outcome.end(attempt), more=more)
            return done._replace(spans=added), outcome
        except InvalidTransitionError as error:
            # Its deadline passed in the store, say; what stands there stays.
            logger.warning("%s: its result comes too late: %s", name_of(attempt), error)
            added, _ = await self.add_held(outcome)
            attempts = await self._store.query_attempts(attempt.rollout_id)
            found = next((a for a in attempts if a.attempt_id == attempt.attempt_id), attempt)
            return Turn(added, found, []), outcome


def _placed(spans: list[Span], in_order: bool) -> list[Span]:
    """The spans; if their place among the calls is not known, their rewards say so."""
    return spans if in_order else [_unordered(span) for span in spans]


def _unordered(span: Span) -> Span:
    if not any(name.startswith(f"{Key.REWARD}.") for name in span.attributes):
        return span
    return span.model_copy(update={"attributes": {**span.attributes, Key.UNORDERED: True}})


def name_of(attempt: Attempt) -> str:
    """What messages begin with."""
    return f"rollout {attempt.rollout_id!r}, attempt {attempt.attempt_id!r}"
