"""The strategy ``cs``: the algorithm here, runners in processes of their own, HTTP between them."""

from agl_server.processes.strategy import (
    ClientServerExecutionStrategy as ClientServerExecutionStrategy,
)
