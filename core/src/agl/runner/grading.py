"""Graders: the contract of what says how well an agent did, where no agent's code ever ran.

A grader is a component of the group ``agl.graders``: the fresh processes of agl-sandbox.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final, Literal

from agl.agent.base import LitAgent
from agl.errors import AglError, ConfigError, install_line
from agl.plugins import registry
from agl.runner.agent_call import RolloutCancelledError
from agl.runner.report import Artefact, Outcome
from agl.types import TaskInput

GROUP: Final = registry.GROUPS["grader"]
KIND: Final = "process"


class GraderError(AglError, RuntimeError):
    """A grader raised, gave no reward that can be read, took too long, or its process died."""


class GraderGoneError(GraderError):
    """The process that forks for graders is gone: nothing can be graded any more."""


class Grader(ABC):
    """Grades results of one agent; one for all runners of this process."""

    @abstractmethod
    def question(self, input: TaskInput) -> str:
        """What it gets beside the result, as JSON; taken before the agent can change its task.

        Raises:
            GraderError: The input is none that JSON can hold.
        """

    @abstractmethod
    async def grade(self, question: str, artefact: Artefact, seconds: float) -> Outcome:
        """The attributes of a span that has what was graded and its reward, or why there is none.

        Args:
            question: Of ``question``.
            artefact: What the agent returned.
            seconds: So long it may take.
        """

    @abstractmethod
    def close(self) -> None:
        """End its processes."""


_graders: dict[tuple[int, int], Grader] = {}
"""Process, and id of an agent -> its grader there, for as long as there is the agent."""
_lock = threading.Lock()


def grader_of(agent: LitAgent[Any]) -> Grader | None:
    """The grader of an agent, made at the first call in this process; None where it has none.

    Raises:
        ConfigError: There is nothing here that can grade.
    """
    if agent.grade_method() is None:
        return None
    key = os.getpid(), id(agent)
    with _lock:
        if (grader := _graders.get(key)) is None:
            grader = _graders[key] = _make(agent)
            weakref.finalize(agent, _forget, key)
    return grader


def _make(agent: LitAgent[Any]) -> Grader:
    if not any(one.name == KIND for one in registry.components(GROUP)):
        raise ConfigError(
            f"agent {type(agent).__name__!r} has a grader, which runs in fresh processes that "
            f"agl-sandbox makes, and that is not installed. Run: {install_line('agl-sandbox')}"
        )
    return registry.load(GROUP, KIND)(agent)


def _forget(key: tuple[int, int]) -> None:
    if key[0] == os.getpid():
        _graders.pop(key).close()


class GradeCall:
    """A grading, which can be stopped; see ``agl.runner.heartbeat.Call``.

    Args:
        grading: Of ``Grader.grade``.
        what: The attempt, for messages.
    """

    is_coroutine = True

    def __init__(self, grading: Coroutine[Any, Any, Outcome], what: str) -> None:
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(grading)

    def stop(self, why: Literal["cancelled"]) -> None:
        """End it; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so has this
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def run(self) -> Outcome:
        """What came of it."""
        try:
            await asyncio.wait([self._task])
        finally:
            if self._task.cancel():
                await asyncio.wait([self._task])
        if self._task.cancelled():
            error = RolloutCancelledError(f"{self._what} was cancelled while it was graded")
            return Outcome(error=error, boundary="cancelled")
        return self._task.result()
