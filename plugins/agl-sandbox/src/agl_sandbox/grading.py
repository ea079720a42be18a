"""Graders in fresh processes, in which no agent's code ever ran.

The processes are forked from one that was forked before the first agent ran here, so that of what
an agent leaves behind (a patched module, a variable, a file in its folder) nothing reaches a
grader. It starts in an empty folder of its own, which is gone afterwards.
"""

import asyncio
import inspect
import json
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from agl.agent.base import LitAgent
from agl.emitter import reward_attributes, reward_value
from agl.errors import ConfigError
from agl.runner.agent_call import awaited
from agl.runner.report import Artefact, Outcome
from agl.runner.sandbox import Grader, GraderError, GraderGoneError
from agl.semconv import LightningSpanAttributes as Key
from agl.types import Attributes, GradeResult, TaskInput, private_of, without_private
from agl.utils.text import clean, describe
from agl_sandbox.fork_server import CallFailedError, ForkServer, ForkServerGoneError
from agl_sandbox.forked_worker import FrameError


class ProcessGrader(Grader):
    """Grades each result in a process of its own.

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
        self.fork_server = ForkServer(lambda payload, ask: _grade(method, payload))

    def question(self, input: TaskInput) -> str:
        try:
            parts = {"task": without_private(input), "private": private_of(input)}
            return json.dumps(parts, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise GraderError(f"a task that is graded must be JSON: {describe(error)}") from None

    async def grade(self, question: str, artefact: Artefact, seconds: float) -> Outcome:
        result = json.loads(artefact.text)
        graded: Attributes = {
            Key.GRADED: True,
            Key.OBJECT_TYPE: type(result).__name__,
            Key.OBJECT_JSON: clean(json.dumps(result, ensure_ascii=False)),
        }
        try:
            reward = await self._ask({**json.loads(question), "result": result}, seconds)
            return Outcome(result={**graded, **_attributes(reward)})
        except GraderError as error:
            return Outcome(result=graded, error=error, boundary="evaluator")

    async def _ask(self, question: dict[str, Any], seconds: float) -> GradeResult:
        with tempfile.TemporaryDirectory(prefix="agl-grade-", ignore_cleanup_errors=True) as folder:
            try:
                return await self.fork_server.call({**question, "folder": folder}, timeout=seconds)
            except TimeoutError:
                raise GraderError(
                    f"the grader took longer than {seconds:.3g} seconds (the runner's "
                    "grade_timeout, or what was left of the rollout's timeout_seconds)"
                ) from None
            except ForkServerGoneError as error:
                raise GraderGoneError(f"nothing can be graded any more: {error}") from None
            except CallFailedError as error:
                failed = GraderError(f"the grader failed: {error}")
                if error.failure is not None:
                    failed.add_note(error.failure["traceback"])
                raise failed from None
            except FrameError as error:
                raise GraderError(f"task and result cannot go to the grader: {error}") from None


_graders: dict[tuple[int, int], ProcessGrader] = {}
"""Process, and id of an agent -> its grader there, for as long as there is the agent."""
_lock = threading.Lock()


def process_grader(agent: LitAgent[Any]) -> ProcessGrader:
    """The grader of an agent, made at the first call in this process."""
    key = os.getpid(), id(agent)
    with _lock:
        if (grader := _graders.get(key)) is None:
            grader = _graders[key] = ProcessGrader(agent)
            weakref.finalize(agent, _forget, key)
    return grader


def _forget(key: tuple[int, int]) -> None:
    if key[0] == os.getpid():
        _graders.pop(key).fork_server.close()


def _attributes(reward: Any) -> Attributes:
    if reward is None:
        return {}
    try:
        return reward_attributes(reward)
    except (TypeError, ValueError) as error:
        raise GraderError(f"the grader's process gave no reward: {describe(error)}") from None


# --- in the grader's process ----------------------------------------------------------------------


def _grade(method: Any, payload: Any) -> GradeResult:
    here = os.getcwd()
    # What an agent left in the working folder must not stand in for a module of Python's.
    # Entries of installers that are no paths stay as they are.
    paths = (os.path.abspath(one) if not one or os.path.exists(one) else one for one in sys.path)
    sys.path[:] = sorted(paths, key=lambda entry: entry == here)
    os.chdir(payload.pop("folder"))
    reward = method(**payload)
    if inspect.isawaitable(reward):
        reward = asyncio.run(awaited(reward))
    return _plain(reward)


def _plain(reward: Any) -> GradeResult:
    if reward is None:
        return None
    if not isinstance(reward, Mapping):
        return reward_value(reward)
    named = {str(name): reward_value(value) for name, value in reward.items()}
    if not named:
        raise ValueError("a grader's dict of rewards must have one; return None for no reward")
    return named
