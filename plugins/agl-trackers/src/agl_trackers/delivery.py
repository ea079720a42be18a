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
from concurrent.futures import Future

from agl.utils.secrets import hide
from agl.utils.text import describe

logger = logging.getLogger("agl.trackers")

MOST_WAITING = 1_000
"""Calls that wait at most."""
FAILS = 1
"""So many failures one after the other, and it is not worth preparing more."""
TRIES = 3
"""So many, and it is tried less and less: what comes in between is lost untried."""
LONGEST_REST = 60.0
"""Seconds between two such tries, at most."""
MOST_REASONS = 6
"""Reasons that the end gives one by one."""


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
        """Records that were to be sent."""
        self.lost: Counter[str] = Counter()
        """Why some were not: reason -> how many."""
        self._most = most
        self._waiting: deque[tuple[str, Callable[[], object], int, Future[object]]] = deque()
        self._last: Future[object] | None = None
        """That of the newest call that was asked for."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._under_way: tuple[str, float] | None = None
        """What is being called, and since when by the monotonic clock."""
        self._is_open: bool | None = None
        """Whether the first call succeeded; None before it returns."""
        self._number = 1
        """How many records the call under way is for."""
        self._is_ending = False
        self._is_given_up = False
        self._is_late = False
        """Whether something was lost for want of time at the end."""
        self._failures = 0
        """Calls that failed since one was made."""
        self._has_failed = False
        """Whether one ever did, which was said then."""
        self._rests_until = 0.0
        """Before then nothing is tried, by the monotonic clock."""

    def put(
        self, what: str, call: Callable[[], object], number: int = 1
    ) -> "Future[object] | None":
        """Ask for a call; returns at once, from any thread.

        Args:
            what: What is sent, for messages and counted by it: "the metrics of a step".
            call: Sends it; what it raises is counted.
            number: How many records that is; 0 for a call whose records are counted by ``took``
                and ``drop``.

        Returns:
            What the call will return, or None as it raises; None at once if it is not tried.
        """
        with self._changed:
            self.given += number
            if self._is_ending or len(self._waiting) >= self._most:
                self.lost["the queue was full"] += number
                return None
            self._last = answer = Future[object]()
            self._waiting.append((what, call, number, answer))
            if self._thread is None:
                name = f"agl-{self.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return answer

    @property
    def is_failing(self) -> bool:
        """Whether it failed last, so that what costs something to prepare had better not be."""
        return self._failures >= FAILS

    @property
    def is_idle(self) -> bool:
        """Whether all that was asked for was tried."""
        return self._last is None or self._last.done()

    async def idle(self) -> None:
        """Wait, for ever where a call hangs, until all that was asked for was tried."""
        if self._last is not None:
            await asyncio.shield(asyncio.wrap_future(self._last))

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

    def took(self, number: int) -> None:
        """Count what a call for no number of records has sent."""
        with self._changed:
            self.given += number

    def doing(self, what: str) -> None:
        """Say what the call under way is at now; its time counts from here. From that call only."""
        with self._changed:
            self._under_way = what, time.monotonic()

    def warn(self, what: str, error: BaseException) -> None:
        """Say a failure, if it is the first."""
        if not self._has_failed:
            self._has_failed = True
            message = hide(f"{type(error).__name__}: {describe(error)}")
            logger.warning("%s: %s raised %s. The run goes on", self.name, what, message)

    async def close(
        self, seconds: float, last: Callable[[], object] | None = None, *, hung: float | None = None
    ) -> None:
        """Wait until all calls are made, and say which were not.

        Args:
            seconds: The longest that this takes.
            last: One more call, which finds room in a full queue, too.
            hung: A call that has been under way for so long already is not waited for; ``seconds``
                if left out.
        """
        with self._changed:
            if last is not None and self._thread is not None:
                self.given += 1
                self._waiting.append(("the end", last, 1, Future()))
            self._is_ending = True
            self._changed.notify_all()
        until = time.monotonic() + seconds
        await asyncio.to_thread(self._wait, until, seconds if hung is None else hung)
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
                self.lost[f"{what} had not returned after {hung:.0f} s"] += self._number
                self._is_late = True
            if self._waiting:
                self.lost["the run had ended"] += sum(number for _, _, number, _ in self._waiting)
                self._waiting.clear()
                self._is_late = True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                what, call, self._number, answer = self._waiting.popleft()
                self._under_way = what, time.monotonic()
            is_waited_for = answer.set_running_or_notify_cancel()
            returned, error = self._call(what, call)
            with self._changed:
                self._under_way = None
                if error is not None and not self._is_given_up:
                    self.lost[error] += self._number
                self._changed.notify_all()
            if is_waited_for:
                answer.set_result(returned)

    def _call(self, what: str, call: Callable[[], object]) -> tuple[object, str | None]:
        """What it returned; and why it was not made, None where it was."""
        if self._is_open is False:
            return None, "it could not be opened"
        is_last = self._is_ending and not self._waiting
        if time.monotonic() < self._rests_until and not is_last:
            return None, f"it had failed {TRIES} times and more one after the other"
        try:
            returned = call()
        # A tracker may end the process where its user said no to something, and what its library
        # raises need be no Exception: a panic of Rust's is none.
        except BaseException as error:
            if self._is_open is None:
                self._is_open = False
            self._failures += 1
            if self._failures >= TRIES:
                rest = min(2.0 ** (self._failures - TRIES), LONGEST_REST)
                self._rests_until = time.monotonic() + rest
            self.warn(what, error)
            return None, f"{what} raised {type(error).__name__}"
        self._is_open, self._failures = True, 0
        return returned, None

    def _say(self) -> None:
        lost = self.lost.total()
        if not lost:
            return
        known = [one for one in self.lost.most_common(MOST_REASONS) if one[1]]
        reasons = "; ".join(f"{number} as {reason}" for reason, number in known)
        if left := lost - sum(number for _, number in known):
            reasons += f"; {left} for {len(self.lost) - len(known)} other reasons"
        if self._is_late:
            reasons += ". A larger wait_seconds waits longer"
        text = "%s: %d of %d records are lost: %s"
        logger.warning(text, self.name, lost, self.given, reasons)
