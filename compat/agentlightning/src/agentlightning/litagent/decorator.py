"""Functions as agents."""

from collections.abc import Awaitable, Callable
from typing import Any

from agentlightning._errors import WrongAgentError, raised_as
from agl import (
    FunctionalLitAgent as FunctionalLitAgent,
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as _rollout,
)
from agl.errors import ConfigError

FunctionalLitAgentFunc = Callable[..., Any]
LlmRolloutFuncSync2 = PromptRolloutFuncSync2 = Callable[[Any, Any], Any]
LlmRolloutFuncSync3 = PromptRolloutFuncSync3 = Callable[[Any, Any, Any], Any]
LlmRolloutFuncAsync2 = PromptRolloutFuncAsync2 = Callable[[Any, Any], Awaitable[Any]]
LlmRolloutFuncAsync3 = PromptRolloutFuncAsync3 = Callable[[Any, Any, Any], Awaitable[Any]]


def rollout(func: Callable[..., Any]) -> FunctionalLitAgent[Any]:
    """Make an agent of a function; see ``agl.rollout``.

    Raises:
        WrongAgentError: It has other parameters than an agent.
    """
    with raised_as(WrongAgentError, ConfigError):
        return _rollout(func)
