"""Stop signals."""

import threading
from typing import Protocol


class ExecutionEvent(Protocol):
    """A flag that says "stop"."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set or ``timeout`` seconds have passed; whether it is set."""
        ...


class ThreadingEvent(threading.Event):
    """A flag within one process."""
