"""One attempt, from its claim to its recorded end."""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Literal

from agl.agent import LitAgent, MissingResourceError
from agl.errors import (
    AgentResultError,
    ConfigError,
    InvalidRecordError,
    InvalidTransitionError,
    StoreError,
)
from agl.hooks import HookCaller
from agl.runner.call import AgentCall, AgentLoop, AgentThreads, RolloutCancelledError
from agl.runner.claims import Claims
from agl.runner.gateways import AttemptGateways
from agl.runner.heartbeat import Running
from agl.runner.held import HeldSpans
from agl.runner.result import Outcome, spans_of_result
from agl.store import rules
from agl.store.base import AttemptEnd, LightningStore, Turn
from agl.store.packed import unpacked
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources, Span

logger = logging.getLogger(__name__)


class AttemptRunner:
    """Runs attempts, any number at once, and records each, whatever becomes of it.

    Args:
        runner: What hooks are told.
        agent: The agent.
        store: Where results go.
        tracer: Collects the spans.
        hooks: Called at the four moments of an attempt.
        on_stuck: See ``LitAgentRunner``.
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
    ) -> None:
        self._agent = agent
        self._store = store
        self._tracer = tracer
        self._hooks = hooks
        self._on_stuck = on_stuck
        self._context = {"agent": agent, "runner": runner}
        self._running: dict[str, Running] = {}
        self._agents: AgentLoop | None = None
        self._threads = AgentThreads()
        self._gateways = AttemptGateways()
        self.stuck: str | None = None
        """Why the runner shall be replaced, once it must be."""

    def running(self) -> list[Running]:
        """The attempts whose agents are at work."""
        return list(self._running.values())

    @contextlib.contextmanager
    def hosting(self) -> Generator[None]:
        """Have threads for agents within the block."""
        self._threads = AgentThreads()
        try:
            yield
        finally:
            if self._agents is not None:
                self._agents.stop()
                self._agents = None
            self._threads.stop()

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
        was_interrupted = False
        held = HeldSpans(self._store)
        spans: list[Span] = []
        try:
            await self._hooks.call("on_rollout_start", rollout=rollout, **self._context)
            outcome, was_interrupted = await self._trace(rollout, held, apart)
            await self._gateways.end(rollout)
            spans = self._tracer.get_last_trace()
            outcome = await self._add_result(rollout, outcome, spans, held)
        except asyncio.CancelledError:
            was_interrupted = True
            outcome = Outcome(
                error=RolloutCancelledError(f"{_what(rollout)} was cancelled"), boundary="cancelled"
            )
            await self._gateways.end(rollout)
        # A rollout is not claimed before it can start: its deadline would run.
        more = not was_interrupted and not self._hooks.listens("on_rollout_end")
        rollout, done = await self._record(rollout, outcome, held.spans, claims, more)
        numbered = {span.span_id: span for span in unpacked(done.spans)}
        spans = [numbered.get(span.span_id, span) for span in spans]
        await self._hooks.call("on_rollout_end", rollout=rollout, spans=spans, **self._context)
        if was_interrupted:
            raise asyncio.CancelledError
        return outcome, next(iter(done.claimed), None)

    async def _trace(
        self, rollout: AttemptedRollout, held: HeldSpans, apart: bool
    ) -> tuple[Outcome, bool]:
        """Call the agent within the trace context; also whether this task was cancelled."""
        outcome: Outcome | None = None
        was_interrupted = False
        where: TracebackType | None = None
        try:
            async with self._tracer.trace_context(
                rollout.rollout_id,
                store=held,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
            ):
                context = {**self._context, "tracer": self._tracer, "rollout": rollout}
                await self._hooks.call("on_trace_start", **context)
                outcome, was_interrupted = await self._call_agent(rollout, apart)
                await self._hooks.call("on_trace_end", **context)
                held.hold()
                if outcome.error is not None:
                    where = outcome.error.__traceback__
                    raise outcome.error  # a tracer may want to see it
            return outcome, was_interrupted
        except (KeyboardInterrupt, StoreError):
            raise
        except BaseException as error:
            if outcome is None or outcome.error is None:
                if isinstance(error, asyncio.CancelledError):
                    raise
                return Outcome(error=error, boundary="tracer"), was_interrupted
            outcome.error.__traceback__ = where  # the agent's frames, without ours
            if error is not outcome.error:
                logger.error("%s: the tracer failed as well: %r", _what(rollout), error)
            return outcome, was_interrupted

    async def _call_agent(self, rollout: AttemptedRollout, apart: bool) -> tuple[Outcome, bool]:
        try:
            resources = await self._resources(rollout)
            self._gateways.note(rollout, resources)
            method = self._agent.rollout_method(rollout.mode)
        except (MissingResourceError, ConfigError) as error:
            return Outcome(error=error), False
        is_coroutine = inspect.iscoroutinefunction(method)
        call = AgentCall(
            method,
            (rollout.input, resources, rollout),
            timeout=rollout.config.timeout_seconds,
            agents=self._agent_loop() if apart and is_coroutine else None,
            threads=self._threads,
            what=_what(rollout),
        )
        attempt_id = rollout.attempt.attempt_id
        self._running[attempt_id] = Running(rollout, call)
        try:
            outcome = await call.run()
        finally:
            del self._running[attempt_id]
        if outcome.stuck:
            self._left_behind(call, outcome)
        return outcome, call.was_interrupted

    def _left_behind(self, call: AgentCall, outcome: Outcome) -> None:
        message = f"{outcome.error}; its agent cannot be stopped and is left behind"
        logger.error("%s", message)
        if self._on_stuck == "raise" and outcome.boundary == "timeout":
            self.stuck = message
        if call.agents is not None and call.agents.blocked:
            for other in list(self._running.values()):
                if other.call.agents is call.agents:
                    other.call.stop("lost")

    def _agent_loop(self) -> AgentLoop:
        if self._agents is None or self._agents.blocked:
            self._agents = AgentLoop()
        return self._agents

    async def _resources(self, rollout: AttemptedRollout) -> NamedResources:
        store = self._store
        if rollout.resources_id is None:
            latest = await store.get_latest_resources()
            return {} if latest is None else latest.resources
        update = await store.get_resources_by_id(rollout.resources_id)
        if update is None:
            raise MissingResourceError(
                f"{_what(rollout)}: its resources {rollout.resources_id!r} are not in the store; "
                "enqueue with the id of a stored snapshot, or with None for the latest"
            )
        return update.resources

    async def _add_result(
        self, rollout: AttemptedRollout, outcome: Outcome, spans: list[Span], held: HeldSpans
    ) -> Outcome:
        """Keep the spans of the result for the end; ``spans`` gets them too."""
        if outcome.error is not None:
            return outcome
        trace_id = spans[-1].trace_id if spans else None
        try:
            new = spans_of_result(outcome.result, rollout.attempt, trace_id)
            spans.extend(await held.add_many_spans(new))
        except (AgentResultError, InvalidRecordError) as error:
            return Outcome(error=error)
        return outcome

    async def _record(
        self,
        rollout: AttemptedRollout,
        outcome: Outcome,
        spans: list[Span],
        claims: Claims,
        more: bool,
    ) -> tuple[AttemptedRollout, Turn]:
        """Store the last spans and the final status; the rollout as it is then."""
        attempt = rollout.attempt
        failure = outcome.failure()
        if failure is not None:
            logger.warning(
                "%s: %s (%s): %s: %s",
                _what(rollout),
                outcome.status,
                failure.boundary,
                failure.type,
                failure.message,
            )
        end = AttemptEnd(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            status=outcome.status,
            error=failure,
        )
        try:
            done = await claims.turn(spans, end, more=more and self.stuck is None)
        except InvalidTransitionError as error:
            # Its deadline passed in the store, say; what stands there stays.
            logger.warning("%s: its result comes too late: %s", _what(rollout), error)
            added = await self._store.add_many_spans(spans)
            attempts = await self._store.query_attempts(attempt.rollout_id)
            found = next((a for a in attempts if a.attempt_id == attempt.attempt_id), attempt)
            return rollout.model_copy(update={"attempt": found}), Turn(added, found, [])
        attempt = done.attempt or attempt
        after = rules.rollout_after(rollout, attempt, attempt.end_time or time.time())
        changes = {"attempt": attempt, "status": after.status, "end_time": after.end_time}
        return rollout.model_copy(update=changes), done


def _what(rollout: AttemptedRollout) -> str:
    return f"rollout {rollout.rollout_id!r}, attempt {rollout.attempt.attempt_id!r}"
