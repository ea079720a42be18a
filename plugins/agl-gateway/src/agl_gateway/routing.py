"""What happens when a replica gives no answer: others are tried, and then all of them again."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from agl_gateway.backend import Backend

FIRST_REST_SECONDS = 0.1
"""How long a replica rests that gave no answer, and how long a call waits before its next round;
each is twice as long the next time."""
MAX_REST_SECONDS = 60.0
"""However often it failed. An answer that asks for a longer rest goes to the agent."""
DEADLINE_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""How the official clients say how many seconds they wait."""


@dataclass(slots=True)
class Tries:
    """The tries of one call: at each replica in turn, then in further rounds after a rest."""

    choose: Callable[[Collection[Backend]], Backend]
    """Who is next; gets those that were tried in this round."""
    num_retries: int
    """Further rounds."""
    deadline: Callable[[], float | None] = lambda: None
    """``time.time()`` after which the client is gone; asked for when there is need."""
    attempt_id: str = ""
    """Whose call it is; empty where it is no attempt's."""
    number: int = 0
    """How many tries there were."""
    backend: Backend = field(init=False)
    """Who was taken last."""
    _is_under_way: bool = False
    _tried: dict[Backend, float] = field(default_factory=dict[Backend, float])
    """In this round, and until when each asked to be left alone."""
    _rounds: int = 0
    """Those that are over."""

    def take(self) -> Backend:
        """Who is tried now, and busy with it until ``close``."""
        self.number += 1
        self.backend = self.choose(self._tried)
        self.backend.in_flight += 1
        self._is_under_way = True
        return self.backend

    def close(self) -> None:
        """The try is over, or all of them."""
        if self._is_under_way:
            self.backend.in_flight -= 1
            self._is_under_way = False

    def failed(self, rest_seconds: float | None = None) -> float | None:
        """The try has failed; after how many seconds the next one begins, or None: it is over.

        Args:
            rest_seconds: How long the backend asked to be left alone.
        """
        now = time.monotonic()
        self._tried[self.backend] = _rest(self.backend, rest_seconds, now)
        if self.choose(self._tried) not in self._tried:
            return 0.0
        # Each had its turn: the next round begins when one of them may be asked again.
        backoff = FIRST_REST_SECONDS * 2**self._rounds
        wait = max(min(self._tried.values()) - now, min(backoff, MAX_REST_SECONDS))
        deadline = self.deadline()
        in_time = round(wait, 3) <= MAX_REST_SECONDS and (
            deadline is None or time.time() + wait < deadline
        )
        if self._rounds >= self.num_retries or not in_time:
            return None
        self._rounds += 1
        self._tried.clear()
        return wait


def _rest(backend: Backend, asked_seconds: float | None, now: float) -> float:
    """Keep calls away from a backend that failed; until when it asked for that itself, if it did.

    Calls that were under way together fail together: only the first one's failure counts.
    """
    if asked_seconds is not None:
        rests_until = now + min(asked_seconds, MAX_REST_SECONDS)
        backend.rests_until = max(backend.rests_until, rests_until)
        return now + asked_seconds
    if now >= backend.rests_until:
        backend.rest_seconds = min(
            max(2 * backend.rest_seconds, FIRST_REST_SECONDS), MAX_REST_SECONDS
        )
        backend.rests_until = now + backend.rest_seconds
    return 0.0


def deadline_of(headers: Iterable[tuple[bytes, bytes]], start_time: float) -> float | None:
    """Until when a call's client waits, if it says so.

    Args:
        headers: Of the call, names in lower case.
        start_time: When it came.
    """
    for name, value in headers:
        if name in DEADLINE_HEADERS:
            try:
                return start_time + float(value)
            except ValueError:  # "None": for ever
                return None
    return None


async def rest(seconds: float) -> None:
    """Wait for at least so long; the event loop's own timers may be early by what it was busy."""
    until, left = time.monotonic() + seconds, seconds
    while left > 0:
        await asyncio.sleep(left)
        left = until - time.monotonic()
