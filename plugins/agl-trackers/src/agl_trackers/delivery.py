"""What is sent by a thread of its own, so that who sends never waits and nothing sent can fail it.

A queue of limited length lies between the two. What finds it full is dropped; what is dropped,
fails, or is left when the time at the end is over, is counted, and said once.
"""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from agl.utils.secrets import hide
from agl.utils.text import describe

logger = logging.getLogger("agl.trackers")

MOST_WAITING = 1_000
"""Calls that wait at most."""
FAILS = 1
"""So many failures one after the other, and it is not worth preparing more."""
BEHIND = 16
"""The same for so many calls that wait."""


class Delivery:
    """Makes calls one after the other in a daemon thread, which begins with the first.

    The first call opens what the others need: if it fails, they are not made.

    Args:
        name: What the log calls it.
        most: Calls that wait at most; further ones are dropped.
    """

    def __init__(self, name: str, most: int = MOST_WAITING) -> None:
        self.name = name
        self.given = 0
        """Calls that were asked for."""
        self.made = 0
        """Those that came back without an error."""
        self.lost: Counter[str] = Counter()
        """Why the others were not: reason -> how many."""
        self._most = most
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._under_way: tuple[str, float] | None = None
        """What is being called, and since when by the monotonic clock."""
        self._is_open: bool | None = None
        """Whether the first call succeeded; None before it returns."""
        self._is_ending = False
        self._is_given_up = False
        self._failures = 0
        """Calls that failed since one was made."""

    def put(self, what: str, call: Callable[[], object]) -> bool:
        """Ask for a call; returns at once, from any thread.

        Args:
            what: What is sent, for messages.
            call: Sends it; what it raises is counted.

        Returns:
            Whether it will be tried.
        """
        with self._changed:
            self.given += 1
            if self._is_ending or len(self._waiting) >= self._most:
                self.lost["the queue was full"] += 1
                return False
            self._waiting.append((what, call))
            if self._thread is None:
                name = f"agl-{self.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    @property
    def num_waiting(self) -> int:
        """Calls that have not begun."""
        return len(self._waiting)

    @property
    def is_behind(self) -> bool:
        """Whether it fails or hangs, so that what costs something to prepare had better not be."""
        return self._failures >= FAILS or self.num_waiting >= BEHIND

    @property
    def seconds_under_way(self) -> float:
        """For how long the call that is being made has not returned; 0 where there is none."""
        under_way = self._under_way
        return time.monotonic() - under_way[1] if under_way else 0.0

    def drop(self, reason: str, number: int = 1) -> None:
        """Count what cannot even be asked for."""
        with self._changed:
            self.given += number
            self.lost[reason] += number

    async def close(self, seconds: float, last: Callable[[], object] | None = None) -> None:
        """Wait until all calls are made, and say which were not.

        Args:
            seconds: The longest that this takes. A call that is under way counts from its own
                beginning: one that has hung for so long already is not waited for.
            last: One more call, which finds room in a full queue, too.
        """
        with self._changed:
            if last is not None and self._thread is not None:
                self.given += 1
                self._waiting.append(("the end", last))
            self._is_ending = True
            self._changed.notify_all()
        await asyncio.to_thread(self._wait, time.monotonic() + seconds, seconds)
        self._say()

    def _wait(self, until: float, seconds: float) -> None:
        """Until the thread is done, or hangs in one call for ``seconds``."""
        with self._changed:
            while self._waiting or self._under_way:
                since = self._under_way[1] if self._under_way else until
                left = min(until, since + seconds) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._is_given_up = True
            if self._under_way is not None:
                what, since = self._under_way
                hung = time.monotonic() - since
                self.lost[f"{what} had not returned after {hung:.0f} s"] += 1
            if self._waiting:
                self.lost["the run had ended"] += len(self._waiting)
                self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                what, call = self._waiting.popleft()
                self._under_way = what, time.monotonic()
            error = self._call(what, call)
            with self._changed:
                self._under_way = None
                self._failures = 0 if error is None else self._failures + 1
                if not self._is_given_up:
                    if error is None:
                        self.made += 1
                    else:
                        self.lost[error] += 1
                self._changed.notify_all()

    def _call(self, what: str, call: Callable[[], object]) -> str | None:
        """Why it was not made; None where it was."""
        if self._is_open is False:
            return "it could not be opened"
        try:
            call()
        # A tracker may end the process where its user said no to something.
        except (Exception, SystemExit) as error:
            if self._is_open is None:
                self._is_open = False
            message = hide(f"{type(error).__name__}: {describe(error)}")
            if not any("raised" in reason for reason in self.lost):
                logger.warning("%s: %s raised %s. The run goes on", self.name, what, message)
            return f"{what} raised {type(error).__name__}"
        self._is_open = True
        return None

    def _say(self) -> None:
        if self.lost:
            reasons = "; ".join(f"{number} as {reason}" for reason, number in self.lost.items())
            text = "%s: %d of %d records are lost: %s"
            logger.warning(text, self.name, self.lost.total(), self.given, reasons)
