"""What runs an agent where its code can do only so much: the contract.

A sandbox is a component of the group ``agl.sandboxes``. agl-sandbox has two, and what others need:
both ends of an attempt, between which nothing but JSON passes.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

from agl.agent.base import LitAgent
from agl.errors import StoreError
from agl.runner.report import AttemptStore
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources

Findings = dict[str, str]
"""What was tried from behind the wall -> ``closed``, or ``open`` and how it succeeded."""


class SandboxedCall(Protocol):
    """One attempt behind a wall, seen from the runner."""

    store_error: StoreError | None
    """Why the runner cannot go on, if the store failed meanwhile."""

    async def rollout_async(
        self, task: Any, resources: NamedResources, rollout: AttemptedRollout
    ) -> Any:
        """Run the agent; in the place of its own method.

        Args:
            task: The input of the rollout; what the agent gets of it.
            resources: A gateway's are handed in as plain addresses of this attempt.
            rollout: Handed in with ``task`` as its input.

        Raises:
            SandboxedAgentError: The agent failed, or did not answer.
        """
        ...


class Sandbox(ABC):
    """Runs the attempts of one runner behind a wall."""

    findings: Findings | None = None
    """What the probe found; None before ``start``."""

    @abstractmethod
    async def start(self, agent: LitAgent[Any], tracer: Tracer) -> None:
        """Start, and try what the wall promises to forbid; before any agent runs.

        Args:
            agent: Whose attempts will be run.
            tracer: Collects their spans behind the wall.

        Raises:
            ConfigError: It cannot start here, something succeeded that it promises to forbid, or
                the agent or the tracer cannot be brought behind the wall.
        """

    @abstractmethod
    def call(self, store: AttemptStore) -> SandboxedCall:
        """One attempt; its spans go to ``store``. Cancelled, it ends all that it started."""

    @abstractmethod
    def close(self) -> None:
        """End everything; may be called again."""
