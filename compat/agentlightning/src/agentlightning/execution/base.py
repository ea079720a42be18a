"""The contract of an execution strategy."""

from agentlightning._names import rest
from agl import (
    ExecutionStrategy as ExecutionStrategy,
)
from agl.execution.base import (
    AlgorithmBundle as AlgorithmBundle,
    RunnerBundle as RunnerBundle,
)

__getattr__ = rest(__name__)
