"""What happens when a replica gives no answer: others are tried, and then all of them again."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from email.utils import parsedate_to_datetime

from agl_gateway.backends import Backend

FIRST_REST_SECONDS = 0.1
"""How long a replica rests that gave no answer; twice as long in the next round."""
MAX_REST_SECONDS = 60.0
"""However long it asked for."""
DEADLINE_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""How the official clients say how many seconds they wait."""


class Tries:
    """The tries of one call: at each replica in turn, then in further rounds after a rest.

    Args:
        choose: Who is next; gets those that were tried in this round.
        num_retries: Further rounds.
        deadline: ``time.time()`` after which the client is gone; asked for when there is need.
    """

    __slots__ = ("_choose", "_deadline", "_num_retries", "_rounds", "_tried", "backend", "number")

    def __init__(
        self,
        choose: Callable[[Collection[Backend]], Backend],
        num_retries: int,
        deadline: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._choose = choose
        self._num_retries = num_retries
        self._deadline = deadline
        self._tried: set[Backend] = set()
        self._rounds = 0
        """Those that are over."""
        self.number = 0
        """How many tries there were."""
        self.backend: Backend
        """Who was taken last."""

    def take(self) -> Backend:
        """Who is tried now."""
        self.number += 1
        self.backend = self._choose(self._tried)
        return self.backend

    def failed(self, rest_seconds: float | None = None) -> float | None:
        """The try has failed; after how many seconds the next one begins, or None: it is over.

        Args:
            rest_seconds: How long the backend asked to be left alone.
        """
        rest = FIRST_REST_SECONDS * 2**self._rounds if rest_seconds is None else rest_seconds
        now = time.monotonic()
        self.backend.rests_until = now + min(rest, MAX_REST_SECONDS)
        self._tried.add(self.backend)
        first = self._choose(self._tried)
        if first not in self._tried:
            return 0.0
        # Each had its turn: the next round begins when one of them has rested.
        wait = max(first.rests_until - now, 0.0)
        deadline = self._deadline()
        in_time = deadline is None or time.time() + wait < deadline
        if self._rounds >= self._num_retries or not in_time:
            return None
        self._rounds += 1
        self._tried.clear()
        return wait


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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a ``Retry-After`` asks for, in either of its forms; None without one."""
    value = headers.get("retry-after", "")
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
