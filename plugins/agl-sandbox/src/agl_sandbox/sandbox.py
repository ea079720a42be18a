"""Both ends of an attempt behind a wall, which say JSON to each other.

A sandbox starts before any agent runs, and calls ``run_attempt`` behind its wall, where there is
neither a store nor a token of one: spans come out as messages, and the runner stores them.
``process`` forks a worker for each attempt, as ``agl_sandbox.forked_worker`` says; ``docker``
starts a container.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from pydantic import TypeAdapter

from agl.agent.base import LitAgent
from agl.errors import InvalidRecordError, TracerError
from agl.runner.agent_call import AgentCall
from agl.runner.report import Artefact, AttemptStore, Outcome, SandboxedAgentError, read_result
from agl.runner.sandbox import Sandbox
from agl.semconv import LightningSpanAttributes as Key
from agl.store.base import LightningStore
from agl.store.packed_span import unpacked
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, Failure, NamedResources, ProxyLLM, Span
from agl.utils.text import capped
from agl_sandbox.fork_server import CallFailedError
from agl_sandbox.forked_worker import Ask, OnMessage

_RESOURCES = TypeAdapter[NamedResources](NamedResources)


class JsonSandbox(Sandbox):
    """A sandbox whose two ends talk JSON."""

    async def call(
        self, rollout: AttemptedRollout, resources: NamedResources, store: AttemptStore
    ) -> Any:
        plain = {
            name: value.with_attempted_rollout(rollout) if isinstance(value, ProxyLLM) else value
            for name, value in resources.items()
        }
        attempt = {
            "rollout": rollout.model_dump(mode="json"),
            "resources": _RESOURCES.dump_python(cast(NamedResources, plain), mode="json"),
        }

        async def on_message(message: Any) -> Any:
            try:
                added = unpacked(await store.add_many_spans(_spans_of(message, rollout)))
            except InvalidRecordError as error:
                return {"refused": str(error)}
            store.received += added
            return {"numbers": {span.span_id: span.sequence_id for span in added}}

        try:
            return _result_of(await self.run(attempt, on_message), rollout)
        except CallFailedError as error:
            failure = Failure(boundary="agent", type="no_answer", message=str(error))
            raise SandboxedAgentError(failure) from None

    @abstractmethod
    async def run(self, attempt: dict[str, Any], on_message: OnMessage) -> Any:
        """Call ``run_attempt`` behind the wall. Cancelled, it ends all that the attempt started.

        Args:
            attempt: What ``run_attempt`` gets; JSON.
            on_message: Answers what comes from behind the wall.

        Returns:
            What ``run_attempt`` returned, as far as an agent can be believed.

        Raises:
            CallFailedError: There is no answer.
        """


def name_of(attempt: Mapping[str, Any]) -> str:
    """What each line begins with that an attempt prints."""
    return f"attempt {attempt['rollout']['attempt']['attempt_id']}"


# --- the runner's end ---------------------------------------------------------------------------


def _spans_of(message: Any, rollout: AttemptedRollout) -> list[Span]:
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    fixed = {**ids, "writer": "agent", "late": False}  # whatever its process says
    try:
        return [Span.model_validate({**span, **fixed}) for span in message["spans"]]
    except (TypeError, ValueError, LookupError) as error:
        raise CallFailedError(f"its process sent something that is no span: {error}") from None


def _result_of(answer: Any, rollout: AttemptedRollout) -> Any:
    """What the agent returned.

    Raises:
        SandboxedAgentError: It failed.
        CallFailedError: The answer is none.
    """
    try:
        if (failure := answer.get("failure")) is not None:
            raise SandboxedAgentError(_capped(Failure.model_validate(failure)))
        if (spans := answer.get("spans")) is not None:
            return _spans_of({"spans": spans}, rollout)
        return answer.get("artefact", answer.get("reward"))
    except (AttributeError, ValueError) as error:
        raise CallFailedError(f"its process sent something that is no result: {error}") from None


def _capped(failure: Failure) -> Failure:
    texts = {name: capped(getattr(failure, name) or "") for name in ("message", "traceback")}
    return failure.model_copy(update={**texts, "type": capped(failure.type, 200)})


# --- the end behind the wall --------------------------------------------------------------------


class _SpansOut(LightningStore):
    """The store as the tracer behind the wall sees it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        message = {"spans": [span.model_dump(mode="json") for span in spans]}
        reply = await asyncio.to_thread(self._ask, message)
        if "refused" in reply:
            raise InvalidRecordError(reply["refused"])
        numbers = reply["numbers"]
        return [
            span.model_copy(update={"sequence_id": numbers[span.span_id]})
            for span in spans
            if span.span_id in numbers
        ]


def run_attempt(
    agent: LitAgent[Any], tracer: Tracer, attempt: Mapping[str, Any], ask: Ask
) -> dict[str, Any]:
    """Run one attempt in this process, which ends after it; the answer for ``JsonSandbox.run``.

    Args:
        tracer: Initialised, with no store.
        attempt: The argument of ``JsonSandbox.run``.
        ask: Sends a message out, and waits for the answer.
    """
    rollout = AttemptedRollout.model_validate(attempt["rollout"])
    resources = _RESOURCES.validate_python(attempt["resources"])
    outcome = asyncio.run(_run(agent, tracer, rollout, resources, _SpansOut(ask)))
    if outcome.failure is not None:
        return {"failure": outcome.failure.model_dump(mode="json")}
    result = outcome.result
    if isinstance(result, Artefact):
        return {"artefact": json.loads(result.text)}
    if isinstance(result, dict):
        return {"reward": result[f"{Key.REWARD.value}.0.value"]}
    return {"spans": [span.model_dump(mode="json") for span in result]} if result else {}


async def _run(
    agent: LitAgent[Any],
    tracer: Tracer,
    rollout: AttemptedRollout,
    resources: NamedResources,
    store: LightningStore,
) -> Outcome:
    outcome = Outcome()
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    try:
        async with tracer.trace_context(rollout.rollout_id, store=store, **ids):
            outcome = await _call(agent, rollout, resources)
    except BaseException as error:
        if outcome.error is None:
            refused = isinstance(error, TracerError) and isinstance(
                error.__cause__, InvalidRecordError
            )
            outcome = Outcome(error=error, boundary="store" if refused else "tracer")
    return outcome


async def _call(
    agent: LitAgent[Any], rollout: AttemptedRollout, resources: NamedResources
) -> Outcome:
    arguments = (rollout.input, resources, rollout)
    try:
        is_graded = agent.grade_method() is not None  # as long as no agent's code has run
        read = partial(read_result, attempt=rollout.attempt, is_graded=is_graded)
        method: Any = agent.rollout_method(rollout.mode)
        call = AgentCall(method, arguments, read=read, attempt=rollout.attempt)
        return await call.run()
    except BaseException as error:  # SystemExit too
        return Outcome(error=error)
