"""A first signal asks the run to end in order; the next one does what it always did."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any


def once(ask: Callable[[], bool]) -> Callable[[], bool]:
    """What asks when it is called first, whichever signal that is, and is False from then on."""
    left = [ask]
    return lambda: left.pop()() if left else False


@contextlib.contextmanager
def asking_first(ask: Callable[[], bool], *numbers: signal.Signals) -> Generator[None]:
    """Within the block, the first of these signals calls ``ask``.

    Args:
        ask: Returns whether the run will end; where it will not, the signal does what it did before
            the block.
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
        restore()
        if not ask():
            signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, asked)
    try:
        yield
    finally:
        restore()
