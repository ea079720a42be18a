"""The strategy ``cs``: the algorithm here, runners in processes of their own, HTTP between them."""

from agl.execution.client_server.strategy import (
    ClientServerExecutionStrategy as ClientServerExecutionStrategy,
)
