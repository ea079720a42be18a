"""Graders: what an agent returned is graded where no agent's code ever ran; the runner's side.

Where that is, is a component of the group ``agl.graders``: the fresh processes of agl-sandbox.
"""

import asyncio
import contextlib
import json
import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any, Final, Literal, cast

from agl.agent.base import LitAgent
from agl.emitter import reward_attributes
from agl.errors import AglError, ConfigError, install_line
from agl.plugins import registry
from agl.runner.agent_call import RolloutCancelledError
from agl.runner.report import Artefact, Outcome
from agl.semconv import LightningSpanAttributes as Key
from agl.types import Attributes, GradeResult, TaskInput, private_of, without_private
from agl.utils.text import clean, describe

GROUP: Final = registry.GROUPS["grader"]
KIND: Final = "process"


class GraderError(AglError, RuntimeError):
    """A grader raised, gave no reward that can be read, took too long, or its process died."""


class GraderGoneError(GraderError):
    """The process that forks for graders is gone: nothing can be graded any more."""


class Grader(ABC):
    """Grades results of one agent; one for all runners of this process."""

    @abstractmethod
    async def grade(self, question: dict[str, Any], result: Any, seconds: float) -> GradeResult:
        """The reward.

        Args:
            question: ``task`` and ``private``; JSON.
            result: What the agent returned; JSON.
            seconds: So long it may take.

        Raises:
            GraderError: There is none.
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


def question_of(input: TaskInput) -> str:
    """What a grader gets beside the result, before the agent can change its task.

    Raises:
        GraderError: The input is none that JSON can hold.
    """
    try:
        parts = {"task": without_private(input), "private": private_of(input)}
        return json.dumps(parts, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraderError(f"a task that is graded must be JSON: {describe(error)}") from None


class GradeCall:
    """A grading, which can be stopped; see ``agl.runner.heartbeat.Call``.

    Args:
        grader: The grader.
        question: See ``question_of``.
        artefact: What the agent returned.
        seconds: So long it may take.
        what: The attempt, for messages.
    """

    is_coroutine = True

    def __init__(
        self, grader: Grader, question: str, artefact: Artefact, *, seconds: float, what: str
    ) -> None:
        self._artefact = artefact
        self._what = what
        self._loop = asyncio.get_running_loop()
        grading = grader.grade(json.loads(question), json.loads(artefact.text), seconds)
        self._task = self._loop.create_task(grading)

    def stop(self, why: Literal["cancelled"]) -> None:
        """End it; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so has this
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def run(self) -> Outcome:
        """What came of it: the attributes of a span that has what was graded, and its reward."""
        try:
            await asyncio.wait([self._task])
        finally:
            if self._task.cancel():
                await asyncio.wait([self._task])
        if self._task.cancelled():
            error = RolloutCancelledError(f"{self._what} was cancelled while it was graded")
            return Outcome(error=error, boundary="cancelled")
        value = json.loads(self._artefact.text)
        graded: Attributes = {
            Key.GRADED: True,
            Key.OBJECT_TYPE: type(value).__name__,
            Key.OBJECT_JSON: clean(json.dumps(value, ensure_ascii=False)),
        }
        try:
            return Outcome(result={**graded, **_attributes(self._task.result())})
        except GraderError as error:
            return Outcome(result=graded, error=error, boundary="evaluator")


def _attributes(reward: Any) -> Attributes:
    if reward is None:
        return {}
    try:
        primary = next(iter(cast(Any, reward))) if isinstance(reward, dict) else None
        return reward_attributes(cast(Any, reward), primary)
    except (TypeError, ValueError, StopIteration) as error:
        raise GraderError(f"the grader's process gave no reward: {describe(error)}") from None
