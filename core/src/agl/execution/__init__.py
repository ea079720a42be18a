"""Where algorithm and runners are placed: the contract (``base``) and two strategies."""

from agl.execution.base import ExecutionStrategy as ExecutionStrategy
