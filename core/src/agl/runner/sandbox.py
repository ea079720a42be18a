"""The contracts of what runs agents, or grades them, apart from the runner; agl-sandbox has both.

A sandbox is a component of the group ``agl.sandboxes``, a grader one of the group ``agl.graders``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from agl.agent.base import LitAgent
from agl.errors import AglError, ConfigError, MissingPluginError
from agl.plugins import registry
from agl.runner.report import Artefact, AttemptStore, Outcome
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources, TaskInput

Findings = dict[str, str]
"""What was tried from behind the wall -> ``closed``, or ``open`` and how it succeeded."""


class Sandbox(ABC):
    """Runs the attempts of one runner behind a wall."""

    findings: Findings | None = None
    """What the probe found; None before ``start``."""

    @abstractmethod
    async def start(self, agent: LitAgent[Any], tracer: Tracer) -> None:
        """Start, and try what the wall promises to forbid; before any agent runs.

        Raises:
            ConfigError: It cannot start here, something succeeded that it promises to forbid, or
                the agent or the tracer cannot be brought behind the wall.
        """

    @abstractmethod
    async def call(
        self, rollout: AttemptedRollout, resources: NamedResources, store: AttemptStore
    ) -> Any:
        """Run the agent; what it returned. Cancelled, it ends all that the attempt started.

        Args:
            resources: A gateway's are handed in as plain addresses of this attempt.

        Raises:
            SandboxedAgentError: The agent failed, or did not answer.
            StoreError: The store failed, and the runner cannot go on.
        """

    @abstractmethod
    def close(self) -> None:
        """End everything; may be called again."""


class GraderError(AglError, RuntimeError):
    """A grader raised, gave no reward that can be read, took too long, or its process died."""


class GraderGoneError(GraderError):
    """The process that forks for graders is gone: nothing can be graded any more."""


class Grader(ABC):
    """Grades results of one agent where no agent's code ever ran; one for all runners here."""

    @abstractmethod
    def question(self, input: TaskInput) -> str:
        """What the grader gets beside the result, as JSON; asked before the agent runs.

        Raises:
            GraderError: JSON cannot hold the input.
        """

    @abstractmethod
    async def grade(self, question: str, artefact: Artefact, seconds: float) -> Outcome:
        """The attributes of a span with what was graded and its reward, or why there is none."""


def grader_of(agent: LitAgent[Any]) -> Grader | None:
    """The agent's grader, one per process, or None; a ``ConfigError`` if nothing here can grade."""
    if agent.grade_method() is None:
        return None
    try:
        make: Callable[[LitAgent[Any]], Grader] = registry.load_only("agl.graders")
    except MissingPluginError as error:
        raise ConfigError(f"agent {type(agent).__name__!r} has a grader; {error}") from None
    return make(agent)
