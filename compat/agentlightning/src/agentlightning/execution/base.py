"""The contract of an execution strategy."""

from agl import (
    ExecutionStrategy as ExecutionStrategy,
)
from agl.execution.base import (
    AlgorithmBundle as AlgorithmBundle,
    RunnerBundle as RunnerBundle,
)
