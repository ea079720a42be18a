"""Short names of execution strategies."""

ExecutionStrategyRegistry = {
    "cs": "agentlightning.execution.client_server.ClientServerExecutionStrategy",
    "shm": "agentlightning.execution.shared_memory.SharedMemoryExecutionStrategy",
}
