"""Stop signals that cross threads and processes."""

import multiprocessing
import threading
from multiprocessing.context import BaseContext
from typing import Protocol


class ExecutionEvent(Protocol):
    """A flag that says "stop"."""

    def set(self) -> None:
        """Raise the flag."""
        ...

    def clear(self) -> None:
        """Lower it."""
        ...

    def is_set(self) -> bool:
        """Whether it is raised."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is raised or ``timeout`` seconds have passed; whether it is."""
        ...


class ThreadingEvent:
    """A flag within one process."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Raise the flag."""
        self._event.set()

    def clear(self) -> None:
        """Lower it."""
        self._event.clear()

    def is_set(self) -> bool:
        """Whether it is raised."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is raised or ``timeout`` seconds have passed; whether it is."""
        return self._event.wait(timeout)


class MultiprocessingEvent(ThreadingEvent):
    """A flag that forked or spawned processes share.

    Args:
        ctx: The multiprocessing context whose processes will share it; None for the default.
    """

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        self._event = (ctx or multiprocessing.get_context()).Event()  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]
