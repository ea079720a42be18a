"""Events that end a run."""

from agentlightning._names import rest
from agl import (
    ExecutionEvent as ExecutionEvent,
    MultiprocessingEvent as MultiprocessingEvent,
    ThreadingEvent as ThreadingEvent,
)

__getattr__ = rest(__name__)
