"""The names; each is imported when it is first used."""

from .base import (
    ExecutionStrategy as ExecutionStrategy,
)
from .client_server import (
    ClientServerExecutionStrategy as ClientServerExecutionStrategy,
)
from .events import (
    ExecutionEvent as ExecutionEvent,
    MultiprocessingEvent as MultiprocessingEvent,
    ThreadingEvent as ThreadingEvent,
)
from .shared_memory import (
    SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
)
