"""A first signal asks the run to end in order; the next one does what it always did."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

ONE_SIGNAL_SECONDS = 1.0
"""Signals within so long count as one: ``timeout`` signals a process, and then its group."""


def once(ask: Callable[[], bool]) -> Callable[[], bool]:
    """A function that asks once; after a yes it is True for a second more, and then False."""
    first: list[float] = []

    def asked() -> bool:
        if first:
            return time.monotonic() - first[0] < ONE_SIGNAL_SECONDS
        first.append(time.monotonic())
        will_end = ask()
        first[0] = first[0] if will_end else -math.inf
        return will_end

    return asked


@contextlib.contextmanager
def asking_first(ask: Callable[[], bool], *numbers: signal.Signals) -> Generator[None]:
    """Within the block, these signals call ``ask``, until it says no for the first time.

    Args:
        ask: Returns whether the run will end; if not, signals do what they did before the block.
        numbers: The signals. Only the main thread is told of them; in another the block changes
            nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is asked:
                signal.signal(number, handler)

    def asked(number: int, frame: object) -> None:
        if not ask():
            restore()
            signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, asked)
    try:
        yield
    finally:
        restore()
