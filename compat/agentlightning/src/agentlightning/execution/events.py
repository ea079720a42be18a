"""Events that end a run."""

from agl import (
    ExecutionEvent as ExecutionEvent,
    MultiprocessingEvent as MultiprocessingEvent,
    ThreadingEvent as ThreadingEvent,
)
