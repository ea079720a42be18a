"""Run: one attempt, from its claim to its recorded end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal

from agl.agent.base import LitAgent
from agl.agent.function import MissingResourceError
from agl.algorithm.gateway import GatewayClient
from agl.errors import (
    ConfigError,
    GatewayError,
    InvalidRecordError,
    PluginError,
    StoreError,
    TracerError,
    UnknownRecordError,
)
from agl.plugins import registry
from agl.plugins.hooks import HookCaller
from agl.runner.agent_call import AgentCall, AgentLoop, RolloutCancelledError
from agl.runner.claims import Claims
from agl.runner.heartbeat import Running
from agl.runner.report import Artefact, AttemptStore, Outcome, name_of, read_result
from agl.runner.sandbox import Grader, GraderError, GraderGoneError, Sandbox
from agl.store.base import LightningStore
from agl.store.rules import FINAL
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources, ProxyLLM, Span, without_private
from agl.types.records import public_failure
from agl.utils.secrets import learn_keys
from agl.utils.text import capped, describe

logger = logging.getLogger(__name__)

LOGGED_TEXT = 2_000
"""Most characters of an attempt's error in the log; the store has more."""


@dataclass(eq=False)
class AttemptRunner:
    """Runs attempts, any number at once, and records each, whatever becomes of it."""

    runner: Any
    """What hooks are told."""
    agent: LitAgent[Any]
    store: LightningStore
    """Where results go."""
    tracer: Tracer
    hooks: HookCaller
    on_stuck: Literal["continue", "raise"]
    """See ``LitAgentRunner``, and for ``grade_timeout``."""
    grade_timeout: float
    sandbox: Sandbox | None
    """Runs the agent, if it is not to run in this process."""
    grader: Grader | None
    """Of the agent, if it has one."""
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    """The attempts that have begun and not ended, their hooks and gateways included."""
    attempt_begun: Callable[[], None] = lambda: None
    """Called with each attempt that begins."""
    apart: bool = True
    """Whether coroutine agents run on a loop of their own."""
    stuck: str | None = None
    """Why the runner shall be replaced, once it must be."""
    _agent_loop: AgentLoop | None = None
    _gateways: GatewayClient | None = None
    """Made for the first attempt with a model behind a gateway."""

    def __post_init__(self) -> None:
        self._context = {"agent": self.agent, "runner": self.runner}

    @contextlib.contextmanager
    def hosting(self) -> Generator[None]:
        """Have an event loop for agents within the block, once one needs it."""
        try:
            yield
        finally:
            if self._agent_loop is not None:
                self._agent_loop.stop()
                self._agent_loop = None

    async def run(
        self, rollout: AttemptedRollout, claims: Claims
    ) -> tuple[Outcome, AttemptedRollout | None]:
        """Run a claimed rollout to its recorded end, which may claim the next one.

        Returns:
            How it went, and the next rollout, which is to be run at once.
        """
        attempt_id = rollout.attempt.attempt_id
        self.running[attempt_id] = Running(rollout)
        self.attempt_begun()
        try:
            return await self._run(rollout, claims)
        except UnknownRecordError:
            if await self.store.get_rollout_by_id(rollout.rollout_id) is not None:
                raise
            message = f"{name_of(rollout.attempt)} was deleted while it ran, and is dropped"
            logger.warning("%s", message)
            if self._gateways is not None:
                await self._gateways.end(rollout, patient=False)
            return Outcome(error=RolloutCancelledError(message), boundary="cancelled"), None
        finally:
            del self.running[attempt_id]

    async def _run(
        self, rollout: AttemptedRollout, claims: Claims
    ) -> tuple[Outcome, AttemptedRollout | None]:
        began, task, spans = time.monotonic(), rollout.input, list[Span]()
        was_cancelled = False
        if self.grader is not None:
            rollout = rollout.changed(input=without_private(task))
        store = AttemptStore(self.store, rollout, partial(self._place, rollout))
        try:
            await self.hooks.call("on_rollout_start", rollout=rollout, **self._context)
            question = "" if self.grader is None else self.grader.question(task)
            outcome = await self._trace(rollout, store, began)
            outcome = await store.add_before_calls(outcome)
            if self._gateways is not None:
                outcome = _with_lost_calls(outcome, await self._gateways.end(rollout))
            if isinstance(outcome.result, Artefact):
                outcome = await self._grade(rollout, question, outcome.result, began)
            if claims.event.is_set():
                outcome = _of_stopped_run(outcome, rollout)
            spans = store.received + self.tracer.get_last_trace()
            # A tracer of one's own may give fields of spans that the store has made spans of.
            trace_id = next((s.trace_id for s in reversed(spans) if isinstance(s, Span)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
            spans += await store.add_many_spans(outcome.spans(rollout.attempt, trace_id))
        except GraderError as error:  # the agent did not run
            outcome = Outcome(error=error, boundary="evaluator")
        except asyncio.CancelledError:
            was_cancelled = True
            error = RolloutCancelledError(f"{name_of(rollout.attempt)} was cancelled")
            outcome = Outcome(error=error, boundary="cancelled")
            if self._gateways is not None:
                await self._gateways.end(rollout, patient=False)
        try:
            if self.hooks.listens("on_rollout_end"):
                outcome = await self._call_before_end(rollout, store, outcome, spans)
        except asyncio.CancelledError:
            was_cancelled = True
        finally:
            # Also if what it awaited has ended in good order since.
            task = asyncio.current_task()
            was_cancelled = was_cancelled or (task is not None and task.cancelling() > 0)
            more = self.stuck is None and not was_cancelled
            done, outcome = await store.end(outcome, claims, more=more)
            self._log(rollout, outcome)
        attempt = done.attempt or rollout.attempt
        await self.hooks.call(
            "on_attempt_end", rollout=rollout, attempt=attempt, error=outcome.error, **self._context
        )
        if was_cancelled:
            raise asyncio.CancelledError
        return outcome, next(iter(done.claimed), None)

    async def _trace(self, rollout: AttemptedRollout, store: AttemptStore, began: float) -> Outcome:
        """Call the agent within the trace context."""
        outcome: Outcome | None = None
        where: TracebackType | None = None
        try:
            async with self.tracer.trace_context(
                rollout.rollout_id,
                store=store,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
            ):
                context = {**self._context, "tracer": self.tracer, "rollout": rollout}
                await self.hooks.call("on_trace_start", **context)
                outcome = await self._call_agent(rollout, store, began)
                await self.hooks.call("on_trace_end", **context)
                store.is_holding = True
                if outcome.error is not None:
                    where = outcome.error.__traceback__
                    raise outcome.error  # a tracer may want to see it
            return outcome
        except BaseException as error:
            raised = outcome.error if outcome else None
            if outcome is not None and raised is not None:
                raised.with_traceback(where)  # the agent's frames, without ours
                if error is not raised:
                    if isinstance(error, KeyboardInterrupt):
                        raise  # Ctrl+C; an agent's own came as its outcome
                    what = name_of(rollout.attempt)
                    logger.error("%s: the tracer failed as well: %s", what, describe(error))
                return outcome
            cause = error.__cause__ if isinstance(error, TracerError) else error
            if isinstance(cause, InvalidRecordError):
                return Outcome(error=error, boundary="store")
            if isinstance(error, asyncio.CancelledError | StoreError | KeyboardInterrupt):
                raise
            return Outcome(error=error, boundary="tracer")

    async def _call_agent(
        self, rollout: AttemptedRollout, store: AttemptStore, began: float
    ) -> Outcome:
        try:
            resources = await self._resources(rollout)
            method: Any = self.agent.rollout_method(rollout.mode)
        except (ConfigError, PluginError) as error:
            return Outcome(error=error)
        arguments: tuple[Any, ...] = rollout.input, resources, rollout
        is_sandboxed = self.sandbox is not None
        if self.sandbox is not None:
            method, arguments = self.sandbox.call, (rollout, resources, store)
        call = AgentCall(
            method,
            arguments,
            read=partial(read_result, attempt=rollout.attempt, is_graded=self.grader is not None),
            attempt=rollout.attempt,
            timeout=rollout.config.timeout_seconds,
            began=began,
            agent_loop=self._loop_for_agents if self.apart and not is_sandboxed else None,
            cancel_seconds=self.agent.cancel_seconds,
        )
        outcome = await self._work(rollout, call)
        # What an agent raises behind a wall comes as a SandboxedAgentError: this is the runner's.
        if is_sandboxed and outcome.boundary != "store" and isinstance(outcome.error, StoreError):
            raise outcome.error
        if outcome.stuck:
            message = f"{outcome.error}; its agent cannot be stopped and is left behind"
            self._is_stuck(message, replace=outcome.boundary != "cancelled")
        return outcome

    async def _resources(self, rollout: AttemptedRollout) -> NamedResources:
        if rollout.resources_id is None:
            update = await self.store.get_latest_resources()
        else:
            update = await self.store.get_resources_by_id(rollout.resources_id)
            if update is None:
                raise MissingResourceError(
                    f"{name_of(rollout.attempt)}: its resources {rollout.resources_id!r} are not "
                    "in the store; enqueue with the id of a stored snapshot, or with None for the "
                    "latest"
                )
        resources = {} if update is None else update.resources
        learn_keys(resources)
        if not any(isinstance(one, ProxyLLM) for one in resources.values()):
            return resources
        if self._gateways is None:
            self._gateways = registry.load_only("agl.gateway_clients")()
        assert self._gateways is not None
        return await self._gateways.open(self.store, rollout, resources)

    async def _place(
        self, rollout: AttemptedRollout, spans: Sequence[Span], *, at_end: bool = False
    ) -> tuple[int, bool]:
        if self._gateways is None:
            return len(spans) + at_end, True
        return await self._gateways.wait_for_earlier_calls(rollout, spans, at_end=at_end)

    def _loop_for_agents(self) -> AgentLoop:
        if self._agent_loop is None or self._agent_loop.is_lost:
            self._agent_loop = AgentLoop()
        return self._agent_loop

    async def _work(self, rollout: AttemptedRollout, call: AgentCall) -> Outcome:
        running = self.running[rollout.attempt.attempt_id]
        running.call = call
        try:
            return await call.run()
        finally:
            running.call = None

    async def _grade(
        self, rollout: AttemptedRollout, question: str, artefact: Artefact, began: float
    ) -> Outcome:
        assert self.grader is not None
        limit = rollout.config.timeout_seconds or float("inf")
        left = max(0.0, began + limit - time.monotonic())  # the store ends the attempt then
        seconds = min(self.grade_timeout, 0.9 * left, max(left - 3, left / 2))
        call = AgentCall(
            self.grader.grade,
            (question, artefact, seconds),
            read=lambda outcome: outcome,
            attempt=rollout.attempt,
            doing="it was graded",
        )
        outcome = await self._work(rollout, call)
        if isinstance(outcome.error, GraderGoneError):
            self._is_stuck(f"{name_of(rollout.attempt)}: {outcome.error}")
        return outcome

    def _is_stuck(self, message: str, *, replace: bool = True) -> None:
        logger.error("%s", message)
        if replace and self.on_stuck == "raise":
            self.stuck = message

    async def _call_before_end(
        self, rollout: AttemptedRollout, store: AttemptStore, outcome: Outcome, spans: list[Span]
    ) -> Outcome:
        """Call the hooks that may still change how the attempt ends."""
        added, outcome = await store.add_held(outcome)
        numbered = {span.span_id: span for span in added}
        spans = [numbered.get(span.span_id, span) for span in spans]
        attempt = rollout.attempt
        stored = await self.store.get_rollout_by_id(rollout.rollout_id) or rollout
        if isinstance(stored, AttemptedRollout) and stored.attempt.attempt_id == attempt.attempt_id:
            attempt = stored.attempt
        if attempt.status not in FINAL:
            end = {"status": outcome.status, "error": outcome.failure, "end_time": time.time()}
            attempt = attempt.model_copy(update=end)
        rollout = rollout.model_copy(update={**dict(stored), "attempt": attempt})
        await self.hooks.call("on_rollout_end", rollout=rollout, spans=spans, **self._context)
        return outcome

    def _log(self, rollout: AttemptedRollout, outcome: Outcome) -> None:
        failure = outcome.failure if self.sandbox is None else public_failure(outcome.failure)
        if failure is not None:
            what, why = name_of(rollout.attempt), capped(failure.message, LOGGED_TEXT)
            about = what, outcome.status, failure.boundary, failure.type, why
            logger.warning("%s: %s (%s): %s: %s", *about)


def _with_lost_calls(outcome: Outcome, lost: GatewayError | None) -> Outcome:
    """How the attempt went if its gateway lost calls; the agent may have raised for that."""
    failure = outcome.failure
    if lost is None or (failure is not None and failure.boundary != "agent"):
        return outcome
    also = f"; the agent raised {failure.type}: {failure.message}" if failure else ""
    return Outcome(error=GatewayError(f"{lost}{also}"), boundary="model")


def _of_stopped_run(outcome: Outcome, rollout: AttemptedRollout) -> Outcome:
    """How the attempt went if its run was stopped: the algorithm may have taken its model away."""
    failure = outcome.failure
    if failure is None or failure.boundary not in ("agent", "model"):
        return outcome
    error = RolloutCancelledError(
        f"{name_of(rollout.attempt)} was cancelled by the stop of its run; it ended with "
        f"{failure.type}: {failure.message}"
    )
    outcome = Outcome(error=error, boundary="cancelled")
    outcome.failure = failure.changed(boundary="cancelled", message=str(error))
    return outcome
