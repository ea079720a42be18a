"""Environments, an agent with its tasks under one name, and rewards by name.

A component of the group ``agl.environments`` makes an ``Environment``, and one of the group
``agl.rewards`` a function with the parameters ``task``, ``private`` and ``result``.
"""

import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from agl.agent.base import GRADE_PARAMETERS, GradeMethod, LitAgent
from agl.errors import ConfigError
from agl.plugins.build import build_component, import_attribute, located
from agl.plugins.registry import GROUPS


@dataclass(frozen=True)
class Environment:
    """An agent with its tasks."""

    agent: LitAgent[Any]
    """With its grader, if it has one."""
    train: Sequence[Any] | None = None
    """Tasks to learn from."""
    val: Sequence[Any] | None = None
    """Tasks to measure with."""


class AbsentAgent(LitAgent[Any]):
    """Stands for the agent in a process that runs only the algorithm."""

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        raise NotImplementedError("the agent of this run is in another process")


def load_environment(spec: str | Mapping[str, Any], where: str = "environment") -> Environment:
    """The environment of a name, or of ``type`` and options.

    Args:
        spec: A name of the group ``agl.environments``, or ``module:attribute``, what makes one.
        where: What error messages begin with.

    Raises:
        ConfigError: Its options are wrong, or it makes something else, or one without tasks.
        PluginError: The name is unknown, or its package does not load.
    """
    group = GROUPS["environment"]
    made = build_component(spec, group=group, expected_type=Environment, where=where)
    for name, tasks in (("train", made.train), ("val", made.val)):
        if tasks is not None and len(tasks) == 0:
            raise ConfigError(
                f"{where}: {spec!r} gives an Environment whose {name} is empty. Give it one task "
                f"at least, or leave {name} out of it, and name a file of tasks as {name}"
            )
    return made


def add_reward(
    agent: LitAgent[Any], spec: str | Mapping[str, Any], where: str = "reward"
) -> LitAgent[Any]:
    """A copy of an agent that is graded by a reward of this name.

    Args:
        agent: One without a grader.
        spec: A name of the group ``agl.rewards``, or ``type`` and options; a function of your own
            as ``module:function``.
        where: What error messages begin with.

    Raises:
        ConfigError: The agent has a grader, the options are wrong, or what they make takes other
            parameters.
        PluginError: The name is unknown, or its package does not load.
    """
    if agent.grade_method() is not None:
        raise ConfigError(f"{where}: the agent has a grader of its own. Leave the reward out")
    with located(where):
        reward = _load_reward(spec)
        names = [*inspect.signature(reward).parameters] if callable(reward) else list[str]()
        if set(names) != GRADE_PARAMETERS:
            raise ConfigError(
                f"{spec!r} takes ({', '.join(names)}); expected (task, private, result)"
            )
    graded = copy(agent)
    graded.grade = reward
    return graded


def _load_reward(spec: str | Mapping[str, Any]) -> GradeMethod:
    if isinstance(spec, str) and ":" in spec:
        found = import_attribute(spec)
        # A function of other parameters makes a reward, as a class does.
        if inspect.isfunction(found) and GRADE_PARAMETERS & {*inspect.signature(found).parameters}:
            return found
    made: Any = build_component(spec, group=GROUPS["reward"], expected_type=object)
    return made
