"""One attempt, from its claim to its recorded end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal

from agl.agent.base import LitAgent
from agl.agent.injection import MissingResourceError
from agl.algorithm.gateway import GatewayClient
from agl.errors import (
    ConfigError,
    GatewayError,
    InvalidRecordError,
    InvalidTransitionError,
    PluginError,
    StoreError,
    TracerError,
)
from agl.plugins.build import build_component
from agl.plugins.hooks import HookCaller
from agl.runner.agent_call import AgentCall, AgentLoop, RolloutCancelledError
from agl.runner.claims import Claims
from agl.runner.grading import GradeCall, Grader, GraderError, GraderGoneError, question_of
from agl.runner.heartbeat import Running
from agl.runner.held_spans import HeldSpans, placed
from agl.runner.result import Artefact, Outcome, read_result
from agl.runner.sandbox import Sandbox
from agl.store.base import LightningStore, Turn
from agl.store.packed import add_accepted, is_refusal
from agl.store.rules import FINAL
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources, ProxyLLM, Span, without_private
from agl.types.records import public_failure
from agl.utils.secrets import learn_keys
from agl.utils.text import capped, describe

logger = logging.getLogger(__name__)

LOGGED_TEXT = 2_000
"""Most characters of an attempt's error in the log; the store has more."""


class AttemptRunner:
    """Runs attempts, any number at once, and records each, whatever becomes of it.

    Args:
        runner: What hooks are told.
        agent: The agent.
        store: Where results go.
        tracer: Collects the spans.
        hooks: Told of each moment of an attempt.
        on_stuck: See ``LitAgentRunner``.
        sandbox: Runs the agent, if it is not to run in this process.
        grader: Of the agent, where it has one.
        grade_timeout: See ``LitAgentRunner``.
    """

    def __init__(
        self,
        runner: Any,
        *,
        agent: LitAgent[Any],
        store: LightningStore,
        tracer: Tracer,
        hooks: HookCaller,
        on_stuck: Literal["continue", "raise"],
        sandbox: Sandbox | None = None,
        grader: Grader | None,
        grade_timeout: float,
    ) -> None:
        self._agent = agent
        self._sandbox = sandbox
        self._grader = grader
        self._grade_timeout = grade_timeout
        self._store = store
        self._tracer = tracer
        self._hooks = hooks
        self._on_stuck = on_stuck
        self._context = {"agent": agent, "runner": runner}
        self._running: dict[str, Running] = {}
        self._agent_loop: AgentLoop | None = None
        self._gateways: GatewayClient | None = None
        """Made for the first attempt with a model behind a gateway."""
        self.stuck: str | None = None
        """Why the runner shall be replaced, once it must be."""

    def running(self) -> list[Running]:
        """The attempts that have begun and not ended, their hooks and gateways included."""
        return list(self._running.values())

    @contextlib.contextmanager
    def hosting(self) -> Generator[None]:
        """Have an event loop for agents within the block, once one needs it."""
        try:
            yield
        finally:
            if self._agent_loop is not None:
                self._agent_loop.stop()
                self._agent_loop = None

    def _loop_for_agents(self) -> AgentLoop:
        if self._agent_loop is None or self._agent_loop.is_lost:
            self._agent_loop = AgentLoop()
        return self._agent_loop

    async def run(
        self, rollout: AttemptedRollout, claims: Claims, *, apart: bool
    ) -> tuple[Outcome, AttemptedRollout | None]:
        """Run a claimed rollout to its recorded end.

        Args:
            rollout: As claimed.
            claims: May claim the next rollout with the end of this one.
            apart: Whether a coroutine agent runs on the agents' loop.

        Returns:
            How it went, and the next rollout, which is to be run at once.
        """
        attempt_id = rollout.attempt.attempt_id
        self._running[attempt_id] = Running(rollout, None)
        try:
            return await self._run(rollout, claims, apart)
        finally:
            del self._running[attempt_id]

    async def _run(
        self, rollout: AttemptedRollout, claims: Claims, apart: bool
    ) -> tuple[Outcome, AttemptedRollout | None]:
        was_interrupted, began = False, time.monotonic()
        task = rollout.input
        if self._grader is not None:
            rollout = rollout.changed(input=without_private(task))
        held = HeldSpans(self._store, partial(self._place, rollout))
        spans: list[Span] = []
        try:
            await self._hooks.call("on_rollout_start", rollout=rollout, **self._context)
            question = "" if self._grader is None else question_of(task)
            outcome, was_interrupted = await self._trace(rollout, held, apart, began)
            outcome = await self._store_before_calls(rollout, held, outcome)
            lost = await self._gateways.end(rollout) if self._gateways else None
            failure = outcome.failure
            if lost is not None and (failure is None or failure.boundary == "agent"):
                # An agent whose gateway is gone may raise, or not: it fails for the same reason.
                also = f"; the agent raised {failure.type}: {failure.message}" if failure else ""
                outcome = Outcome(error=GatewayError(f"{lost}{also}"), boundary="model")
            if isinstance(outcome.result, Artefact):
                outcome = await self._grade(rollout, question, outcome.result, began)
            failure = outcome.failure
            if claims.event.is_set() and failure and failure.boundary in ("agent", "model"):
                # The algorithm may have taken the model away already.
                why = f"the stop of its run; it ended with {failure.type}: {failure.message}"
                error = RolloutCancelledError(f"{_what(rollout)} was cancelled by {why}")
                outcome = Outcome(error=error, boundary="cancelled")
                outcome.failure = failure.changed(boundary="cancelled", message=str(error))
            spans = held.received + self._tracer.get_last_trace()
            # A tracer of one's own may give fields of spans that the store has made spans of.
            trace_id = next((s.trace_id for s in reversed(spans) if isinstance(s, Span)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
            if found := outcome.spans(rollout.attempt, trace_id):
                spans += await held.add_many_spans(found)
        except GraderError as error:  # nothing was run
            outcome = Outcome(error=error, boundary="evaluator")
        except asyncio.CancelledError:
            was_interrupted = True
            outcome = Outcome(
                error=RolloutCancelledError(f"{_what(rollout)} was cancelled"), boundary="cancelled"
            )
            if self._gateways is not None:
                await self._gateways.end(rollout, patient=False)
        try:
            if self._hooks.listens("on_rollout_end"):
                added, outcome = await self._add(held.spans, outcome)
                held.spans = []
                await self._call_before_end(rollout, outcome, spans, added)
        except asyncio.CancelledError:
            was_interrupted = True
        finally:
            done = await self._record(rollout, outcome, held.spans, claims, not was_interrupted)
        attempt = done.attempt or rollout.attempt
        await self._hooks.call(
            "on_attempt_end", rollout=rollout, attempt=attempt, error=outcome.error, **self._context
        )
        if was_interrupted:
            raise asyncio.CancelledError
        return outcome, next(iter(done.claimed), None)

    async def _place(
        self, rollout: AttemptedRollout, spans: Sequence[Span], *, at_end: bool = False
    ) -> tuple[int, bool]:
        if self._gateways is None:
            return len(spans) + at_end, True
        return await self._gateways.place(rollout, spans, at_end=at_end)

    async def _store_before_calls(
        self, rollout: AttemptedRollout, held: HeldSpans, outcome: Outcome
    ) -> Outcome:
        """Store the last spans that came before a call; the others go with the final status."""
        while held.spans:
            count, in_order = await self._place(rollout, held.spans, at_end=True)
            held.spans[:count] = placed(held.spans[:count], in_order)
            if count > len(held.spans):
                break
            _, outcome = await self._add(held.spans[:count], outcome)
            del held.spans[:count]
        return outcome

    async def _call_before_end(
        self, rollout: AttemptedRollout, outcome: Outcome, spans: list[Span], added: list[Span]
    ) -> None:
        numbered = {span.span_id: span for span in added}
        spans = [numbered.get(span.span_id, span) for span in spans]
        attempt = rollout.attempt
        stored = await self._store.get_rollout_by_id(rollout.rollout_id) or rollout
        if isinstance(stored, AttemptedRollout) and stored.attempt.attempt_id == attempt.attempt_id:
            attempt = stored.attempt
        if attempt.status not in FINAL:
            end = {"status": outcome.status, "error": outcome.failure, "end_time": time.time()}
            attempt = attempt.model_copy(update=end)
        rollout = rollout.model_copy(update={**dict(stored), "attempt": attempt})
        await self._hooks.call("on_rollout_end", rollout=rollout, spans=spans, **self._context)

    async def _trace(
        self, rollout: AttemptedRollout, held: HeldSpans, apart: bool, began: float
    ) -> tuple[Outcome, bool]:
        """Call the agent within the trace context; also whether this task was cancelled."""
        outcome: Outcome | None = None
        where: TracebackType | None = None
        was_interrupted = False
        try:
            async with self._tracer.trace_context(
                rollout.rollout_id,
                store=held,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
            ):
                context = {**self._context, "tracer": self._tracer, "rollout": rollout}
                await self._hooks.call("on_trace_start", **context)
                outcome, was_interrupted = await self._call_agent(rollout, held, apart, began)
                await self._hooks.call("on_trace_end", **context)
                held.hold()
                if outcome.error is not None:
                    where = outcome.error.__traceback__
                    raise outcome.error  # a tracer may want to see it
            return outcome, was_interrupted
        except BaseException as error:
            raised = outcome.error if outcome else None
            if raised is not None:
                raised.with_traceback(where)  # the agent's frames, without ours
            if outcome is not None and error is raised:
                return outcome, was_interrupted
            if isinstance(error, KeyboardInterrupt):
                raise  # Ctrl+C; an agent's own came as its outcome
            if outcome is not None and raised is not None:
                logger.error("%s: the tracer failed as well: %s", _what(rollout), describe(error))
                return outcome, was_interrupted or isinstance(error, asyncio.CancelledError)
            cause = error.__cause__ if isinstance(error, TracerError) else error
            if isinstance(cause, InvalidRecordError):
                return Outcome(error=error, boundary="store"), was_interrupted
            if isinstance(error, asyncio.CancelledError | StoreError):
                raise
            return Outcome(error=error, boundary="tracer"), was_interrupted

    async def _call_agent(
        self, rollout: AttemptedRollout, held: HeldSpans, apart: bool, began: float
    ) -> tuple[Outcome, bool]:
        sandboxed = None if self._sandbox is None else self._sandbox.call(held)
        try:
            resources = await self._resources(rollout)
            method: Any = self._agent.rollout_method(rollout.mode)
            if sandboxed is not None:
                method, apart = sandboxed.rollout_async, False
        except (ConfigError, PluginError) as error:
            return Outcome(error=error), False
        call = AgentCall(
            method,
            (rollout.input, resources, rollout),
            read=lambda result: read_result(
                result, rollout.attempt, is_graded=self._grader is not None
            ),
            timeout=rollout.config.timeout_seconds,
            began=began,
            agent_loop=self._loop_for_agents if apart else None,
            what=_what(rollout),
        )
        outcome = await self._work(rollout, call)
        if sandboxed is not None and sandboxed.store_error is not None:
            raise sandboxed.store_error
        if outcome.stuck:
            message = f"{outcome.error}; its agent cannot be stopped and is left behind"
            self._is_stuck(message, replace=outcome.boundary != "cancelled")
        return outcome, call.was_interrupted

    async def _work(self, rollout: AttemptedRollout, call: AgentCall | GradeCall) -> Outcome:
        attempt_id = rollout.attempt.attempt_id
        self._running[attempt_id] = Running(rollout, call)
        try:
            return await call.run()
        finally:
            self._running[attempt_id] = Running(rollout, None)

    async def _grade(
        self, rollout: AttemptedRollout, question: str, artefact: Artefact, began: float
    ) -> Outcome:
        assert self._grader is not None
        seconds, limit = self._grade_timeout, rollout.config.timeout_seconds
        if limit is not None:
            seconds = max(0.0, min(seconds, began + limit - time.monotonic()))
        call = GradeCall(self._grader, question, artefact, seconds=seconds, what=_what(rollout))
        outcome = await self._work(rollout, call)
        if isinstance(outcome.error, GraderGoneError):
            self._is_stuck(f"{_what(rollout)}: {outcome.error}")
        return outcome

    def _is_stuck(self, message: str, *, replace: bool = True) -> None:
        logger.error("%s", message)
        if replace and self._on_stuck == "raise":
            self.stuck = message

    async def _resources(self, rollout: AttemptedRollout) -> NamedResources:
        store = self._store
        if rollout.resources_id is None:
            update = await store.get_latest_resources()
        else:
            update = await store.get_resources_by_id(rollout.resources_id)
        if update is None and rollout.resources_id is not None:
            raise MissingResourceError(
                f"{_what(rollout)}: its resources {rollout.resources_id!r} are not in the store; "
                "enqueue with the id of a stored snapshot, or with None for the latest"
            )
        resources = {} if update is None else update.resources
        learn_keys(resources)
        if not any(isinstance(one, ProxyLLM) for one in resources.values()):
            return resources
        if self._gateways is None:
            self._gateways = build_component(
                "http", group="agl.gateway_clients", expected_type=GatewayClient, where="runner"
            )
        return await self._gateways.open(store, rollout, resources)

    async def _record(
        self,
        rollout: AttemptedRollout,
        outcome: Outcome,
        spans: list[Span],
        claims: Claims,
        more: bool,
    ) -> Turn:
        """Store the last spans and the final status."""
        attempt = rollout.attempt
        more = more and self.stuck is None
        try:
            try:
                done = await claims.turn(spans, outcome.end(attempt), more=more)
            except Exception as error:
                if not is_refusal(error):
                    raise
                added, outcome = await self._add(spans, outcome)
                done = await claims.turn([], outcome.end(attempt), more=more)
                done = done._replace(spans=added)
        except InvalidTransitionError as error:
            # Its deadline passed in the store, say; what stands there stays.
            logger.warning("%s: its result comes too late: %s", _what(rollout), error)
            added, _ = await self._add(spans, outcome)
            attempts = await self._store.query_attempts(attempt.rollout_id)
            found = next((a for a in attempts if a.attempt_id == attempt.attempt_id), attempt)
            done = Turn(added, found, [])
        if (failure := outcome.failure) is not None:
            shown = failure if self._sandbox is None else public_failure(failure)
            logger.warning(
                "%s: %s (%s): %s: %s",
                _what(rollout),
                outcome.status,
                shown.boundary,
                shown.type,
                capped(shown.message, LOGGED_TEXT),
            )
        return done

    async def _add(self, spans: list[Span], outcome: Outcome) -> tuple[list[Span], Outcome]:
        """Store those spans that the store takes; of a success, a refusal makes a failure."""
        added, refused = await add_accepted(self._store.add_many_spans, spans)
        if refused and not outcome.error:
            outcome = Outcome(error=refused[0], boundary="store")
        return added, outcome


def _what(rollout: AttemptedRollout) -> str:
    return f"rollout {rollout.rollout_id!r}, attempt {rollout.attempt.attempt_id!r}"
