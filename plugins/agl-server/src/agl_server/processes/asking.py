"""A signal that stops the run is answered by the process that has the algorithm."""

import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess

ANSWER_SECONDS = 2.0
"""One who is asked elsewhere, and answers no sooner, is taken to be busy, and will end."""


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
