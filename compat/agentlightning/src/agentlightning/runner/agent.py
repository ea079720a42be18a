"""The runner of agents."""

from typing import TypeVar

from agentlightning._names import rest
from agl import LitAgentRunner as LitAgentRunner

T_task = TypeVar("T_task")


__getattr__ = rest(__name__)
