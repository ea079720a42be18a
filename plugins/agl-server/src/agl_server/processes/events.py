"""A stop signal that crosses processes."""

import math
import multiprocessing
import time
from multiprocessing.context import BaseContext

LOOK_SECONDS = 0.05
"""How often a flag of several processes is looked at by who waits for it."""


class MultiprocessingEvent:
    """A flag that forked or spawned processes share.

    It is one byte of shared memory without a lock: a process that is killed while it looks at a
    lock would keep it for ever, and a signal handler would wait for the code that it interrupts.

    Args:
        ctx: The multiprocessing context whose processes will share it; None for the default.
    """

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        self._byte = (ctx or multiprocessing.get_context()).RawValue("b", 0)

    def set(self) -> None:
        self._byte.value = 1

    def clear(self) -> None:
        self._byte.value = 0

    def is_set(self) -> bool:
        return bool(self._byte.value)

    def wait(self, timeout: float | None = None) -> bool:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self.is_set()
