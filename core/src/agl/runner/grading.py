"""Graders: what an agent returned is graded in a fresh process, in which no agent's code ever ran.

The processes are forked from one that was forked before the first agent ran here, so that of what
an agent leaves behind (a patched module, a variable, a file in its folder) nothing reaches a
grader. It starts in an empty folder of its own, which is gone afterwards.
"""

import asyncio
import contextlib
import inspect
import json
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal, cast

from agl.agent.base import LitAgent
from agl.emitter import reward_attributes, reward_value
from agl.errors import AglError, ConfigError
from agl.runner.agent_call import RolloutCancelledError, awaited
from agl.runner.forked import FrameError
from agl.runner.forker import CallFailedError, Forker, ForkerGoneError
from agl.runner.result import Artefact, Outcome
from agl.semconv import LightningSpanAttributes as Key
from agl.types import Attributes, GradeResult, TaskInput, private_of, without_private
from agl.utils.text import clean, describe


class GraderError(AglError, RuntimeError):
    """A grader raised, gave no reward that can be read, took too long, or its process died."""


class GraderGoneError(GraderError):
    """The process that forks for graders is gone: nothing can be graded any more."""


class Grader:
    """Grades results of one agent; one for all runners of this process.

    Args:
        agent: One that has ``grade``; as it is now.

    Raises:
        ConfigError: This system cannot fork.
    """

    def __init__(self, agent: LitAgent[Any]) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError(
                f"agent {type(agent).__name__!r} has a grader, which needs processes that are "
                f"forked, and {sys.platform} has none; run it on Linux or macOS"
            )
        method = agent.grade_method()
        self.pid = os.getpid()
        self.forker = Forker(lambda payload, ask: _grade(method, payload))

    async def grade(self, question: str, result: str, seconds: float) -> GradeResult:
        """The reward.

        Args:
            question: See ``question_of``.
            result: JSON of what the agent returned.
            seconds: So long it may take.

        Raises:
            GraderError: There is none.
        """
        with tempfile.TemporaryDirectory(prefix="agl-grade-", ignore_cleanup_errors=True) as folder:
            payload = {**json.loads(question), "result": json.loads(result), "folder": folder}
            try:
                return await self.forker.call(payload, timeout=seconds)
            except TimeoutError:
                raise GraderError(
                    f"the grader took longer than {seconds:.3g} seconds (the runner's "
                    "grade_timeout, or what was left of the rollout's timeout_seconds)"
                ) from None
            except ForkerGoneError as error:
                raise GraderGoneError(f"nothing can be graded any more: {error}") from None
            except CallFailedError as error:
                failed = GraderError(f"the grader failed: {error}")
                if error.failure is not None:
                    failed.add_note(error.failure["traceback"])
                raise failed from None
            except FrameError as error:
                raise GraderError(f"task and result cannot go to the grader: {error}") from None


_graders: dict[int, Grader] = {}
"""Id of an agent -> its grader in this process, for as long as there is the agent."""
_lock = threading.Lock()


def grader_of(agent: LitAgent[Any]) -> Grader | None:
    """The grader of an agent, made at the first call in this process; None where it has none."""
    if agent.grade_method() is None:
        return None
    with _lock:
        grader = _graders.get(id(agent))
        if grader is None or grader.pid != os.getpid():
            grader = _graders[id(agent)] = Grader(agent)
            weakref.finalize(agent, _forget, id(agent), grader)
    return grader


def _forget(number: int, grader: Grader) -> None:
    if grader.pid == os.getpid():
        _graders.pop(number, None)
        grader.forker.close()


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
        self._task = self._loop.create_task(grader.grade(question, artefact.text, seconds))

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


# --- in the grader's process ----------------------------------------------------------------------


def _grade(method: Any, payload: Any) -> GradeResult:
    here = os.getcwd()
    # What an agent left in the working folder must not stand in for a module of Python's.
    sys.path[:] = sorted(map(_absolute, sys.path), key=lambda entry: entry == here)
    os.chdir(payload.pop("folder"))
    reward = method(**payload)
    if inspect.isawaitable(reward):
        reward = asyncio.run(awaited(reward))
    return _plain(reward)


def _absolute(entry: str) -> str:
    # Those of installers that are no paths stay as they are.
    return os.path.abspath(entry) if not entry or os.path.exists(entry) else entry


def _plain(reward: Any) -> GradeResult:
    if reward is None:
        return None
    if not isinstance(reward, Mapping):
        return reward_value(reward)
    named = {str(name): reward_value(value) for name, value in cast(Any, reward).items()}
    if not named:
        raise ValueError("a grader's dict of rewards must have one; return None for no reward")
    return named
