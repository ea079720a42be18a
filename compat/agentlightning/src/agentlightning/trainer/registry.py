"""Short names of execution strategies."""

from agentlightning._names import rest

ExecutionStrategyRegistry = {
    "cs": "agentlightning.execution.client_server.ClientServerExecutionStrategy",
    "shm": "agentlightning.execution.shared_memory.SharedMemoryExecutionStrategy",
}

__getattr__ = rest(__name__)
