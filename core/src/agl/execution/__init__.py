"""Where algorithm and runners are placed: the contract (``base``) and threads."""

from agl.execution.base import ExecutionStrategy as ExecutionStrategy
