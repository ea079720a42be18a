"""A first signal asks the run to end in order; the next one does what it always did."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

ONE_SIGNAL_SECONDS = 1.0
"""Signals within so long count as one: ``timeout`` signals a process, and then its group."""


class GracefulShutdown:
    """Asks a run once to end; gives the same answer for a second, and then False."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._asked_at: float | None = None
        self._will_end = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at, self._will_end = now, True  # also for a signal that comes meanwhile
            self._will_end = self._ask()
            return self._will_end
        return self._will_end and now - self._asked_at < ONE_SIGNAL_SECONDS


@contextlib.contextmanager
def graceful_signals(ask: Callable[[], bool], *numbers: signal.Signals) -> Generator[None]:
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
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)

    def on_signal(number: int, frame: object) -> None:
        if not ask():
            restore()
            signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
