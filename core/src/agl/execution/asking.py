"""A first signal asks the run to end in order; the next one does what it always did."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess
from typing import Any

ANSWER_SECONDS = 2.0
"""One who is asked elsewhere, and answers no sooner, is taken to be busy, and will end."""


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


class AskingElsewhere:
    """Asks in a forked process, by a signal of its own, and hears whether the run will end.

    Args:
        ask: Called in the process that is asked.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._answers, self._answer = Pipe(duplex=False)

    def listen(self) -> None:
        """In the process that is asked, first of all."""
        signal.signal(signal.SIGUSR1, lambda number, frame: self._answer.send(self._ask()))

    def ask(self, process: BaseProcess) -> bool:
        """From its parent."""
        if process.pid is None or not process.is_alive():
            return False
        os.kill(process.pid, signal.SIGUSR1)
        return not self._answers.poll(ANSWER_SECONDS) or bool(self._answers.recv())
