"""An agent of agl that is a whole trial of Harbor: sandbox, agent and verifier."""

import re
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.runner.report import SandboxedAgentError
from agl.types import LLM, AttemptedRollout, Failure, NamedResources, ProxyLLM, Rollout
from agl.types.records import Boundary
from agl_processes.sandbox_limits import CLEANUP_SECONDS, SandboxLimits, finish

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo, TrialResult  # pyright: ignore[reportMissingImports]

LOST = re.compile(
    r"(Sandbox|Daytona|Pod)NotFound|^NotFoundException|Sandbox(Terminated|Timeout)"
    "|NotRunning|Unreachable|SpotEvicted|DaytonaGone"
)
"""Errors of the clouds' SDKs for a sandbox that is there no more."""


class HarborAgent(LitAgent[dict[str, Any]]):
    """Runs one of Harbor's agents on a task of Harbor's; its reward is the verifier's.

    A task is what Harbor's ``TaskConfig`` takes: ``{"path": FOLDER}``, or a name in its registry.
    The agent calls the model of the rollout, so agents that run in the sandbox (Claude Code,
    Codex) need a gateway that the sandbox reaches; ``terminus-2`` calls it from here.

    Args:
        agent: Fields of Harbor's ``AgentConfig``: ``name`` or ``import_path``, and ``kwargs``.
        sandbox: Fields of its ``EnvironmentConfig``: ``type`` or ``import_path``, and ``kwargs``.
        limits: Limits on how many sandboxes start in a minute, and on what they cost.
        logs: A folder that keeps what Harbor writes of each trial; None keeps nothing.
    """

    cancel_seconds = CLEANUP_SECONDS

    def __init__(
        self,
        agent: Mapping[str, Any],
        sandbox: Mapping[str, Any],
        limits: SandboxLimits,
        logs: Path | None = None,
    ) -> None:
        super().__init__()
        self._agent, self._sandbox, self._limits, self._logs = agent, sandbox, limits, logs

    async def rollout_async(
        self, task: dict[str, Any], resources: NamedResources, rollout: Rollout
    ) -> dict[str, float]:
        """The verifier's rewards by name, ``reward`` first.

        Raises:
            SandboxedAgentError: The trial gave none; it says what failed: sandbox, agent, verifier.
        """
        from harbor.models.trial.config import TrialConfig  # pyright: ignore[reportMissingImports]
        from harbor.trial.hooks import TrialEvent  # pyright: ignore[reportMissingImports]
        from harbor.trial.trial import Trial  # pyright: ignore[reportMissingImports]

        assert isinstance(rollout, AttemptedRollout)
        models = [value for value in resources.values() if isinstance(value, LLM)]
        model = models[0] if len(models) == 1 else None
        if isinstance(model, ProxyLLM):
            model = model.with_attempted_rollout(rollout)
        agent = with_model(self._agent, model)
        name = f"{rollout.rollout_id}-{rollout.attempt.sequence_id}"
        config = {"task": task, "agent": agent, "environment": self._sandbox, "trial_name": name}
        with tempfile.TemporaryDirectory(prefix="harbor-", ignore_cleanup_errors=True) as folder:
            config["trials_dir"] = str(self._logs or folder)
            trial = await Trial.create(TrialConfig.model_validate(config))
            sandbox = trial.agent_environment
            start, stop = sandbox.start, sandbox.stop
            sandbox.start = lambda force_build: finish(start(force_build))
            sandbox.stop = lambda delete: finish(stop(delete))  # a second signal cancels again
            async with AsyncExitStack() as stack:
                limits = self._limits.sandbox(rollout)  # entered when the trial wants a sandbox
                wait = lambda _: stack.enter_async_context(limits)  # noqa: E731
                trial.add_hook(TrialEvent.ENVIRONMENT_START, wait)
                result = await trial.run()
        return _rewards_of(result)


def with_model(agent: Mapping[str, Any], llm: LLM | None) -> dict[str, Any]:
    """Harbor's configuration of an agent that calls this model."""
    if agent.get("name") in ("oracle", "nop"):  # which call no model
        return {**agent}
    if llm is None:
        raise ConfigError(
            "environment 'harbor' needs one model among the resources. Choose an algorithm that "
            "serves one, or give one in resources"
        )
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), llm.api_key or "none")
    model = {"model_name": f"openai/{llm.model}", "base_url": llm.endpoint}
    return {**agent, **model, "env": {**keys, **agent.get("env", {})}}


def _rewards_of(result: "TrialResult") -> dict[str, float]:
    rewards = result.verifier_result.rewards if result.verifier_result else None
    if result.reward_valid and rewards:
        first = {"reward": rewards["reward"]} if "reward" in rewards else {}
        return {name: float(value) for name, value in {**first, **rewards}.items()}
    errors = result.recorded_exceptions()
    if not errors:
        message = f"the verifier of {result.task_name!r} wrote no reward"
        raise SandboxedAgentError(Failure(boundary="evaluator", type="no_reward", message=message))
    error = errors[0]
    raise SandboxedAgentError(
        Failure(
            boundary=_boundary_of(result, error),
            type=f"harbor.{error.exception_type}",
            message=error.exception_message,
            traceback=error.exception_traceback,
        )
    )


def _boundary_of(result: "TrialResult", error: "ExceptionInfo") -> Boundary:
    if result.agent_execution is None or LOST.search(error.exception_type):
        return "resources"  # the sandbox, or what the agent needs in it
    if error.exception_type == "AgentTimeoutError":
        return "timeout"
    verifier = result.verifier and result.verifier.started_at
    return "agent" if verifier is None or error.occurred_at < verifier else "evaluator"
