"""The gateway's own side of a call: connections to backends, and who is asked after a failure."""

import asyncio
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agl_gateway import litellm
from agl_gateway.backends import Answer, Backend
from agl_gateway.dialect import TOKENIZE, Exchange
from agl_gateway.errors import RefusedError
from agl_gateway.pool import Pool
from agl_models.provider_errors import retry_after

CHAT = "chat/completions"
RETRIED_STATUS = (429, 502, 503, 504)
SESSION_HEADER = "x-session-id"
"""Tells a server of our own which calls share a beginning: those of one attempt."""
FIRST_REST_SECONDS = 0.1
"""How long a replica rests that gave no answer, and how long a call waits before its next round;
each is twice as long the next time."""
MAX_REST_SECONDS = 60.0
"""However often it failed. An answer that asks for a longer rest goes to the agent."""
DEADLINE_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""How the official clients say how many seconds they wait."""


@dataclass(slots=True)
class Failover:
    """The tries of one call: at each replica in turn, then in further rounds after a rest."""

    choose: Callable[[Collection[Backend]], Backend]
    """Who is next; gets those that were tried in this round."""
    num_retries: int
    deadline: Callable[[], float | None] = lambda: None
    """``time.time()`` after which the client is gone; asked for when there is need."""
    attempt_id: str = ""
    """Whose call it is; empty where it is no attempt's."""
    number: int = 0
    backend: Backend = field(init=False)
    _is_under_way: bool = False
    _tried: dict[Backend, float] = field(default_factory=dict[Backend, float])
    """In this round, and until when each asked to be left alone."""
    _rounds: int = 0

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

        The backend may have asked to be left alone for ``rest_seconds``.
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


def deadline_of(headers: Mapping[bytes, bytes], start_time: float) -> float | None:
    """Until when a call's client waits, if it says so in its headers."""
    given = next((headers[name] for name in DEADLINE_HEADERS if name in headers), b"")
    try:
        return start_time + float(given)
    except ValueError:  # nothing, or "None": for ever
        return None


class Upstream(Protocol):
    """What answers calls: backends, or something in their place."""

    async def aclose(self) -> None:
        """End; nothing is asked any more."""

    async def open(
        self, failover: Failover, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        """Send a call to a path under ``api_base``; return when status and headers are there.

        Raises:
            RefusedError: There is no answer that could be passed on.
        """
        ...


class HttpUpstream:
    """Opens calls to backends, and goes to others when one cannot be reached or is overloaded.

    A stream that has begun is never tried again.
    """

    def __init__(self) -> None:
        self._pool = Pool()

    async def aclose(self) -> None:
        await self._pool.close()

    async def open(
        self, failover: Failover, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        while True:
            backend = failover.take()
            try:
                answer = await self._ask(failover, exchange, path, callbacks)
            except OSError as error:
                wait = failover.failed()
                if wait is None:
                    why = str(error) or type(error).__name__
                    raise RefusedError(
                        502,
                        f"the backend of model {backend.model_name!r} at {backend.url} cannot be "
                        f"reached after {failover.number} tries: {why}",
                    ) from None
            else:
                if answer.status not in RETRIED_STATUS:
                    backend.rest_seconds = 0.0
                    return answer
                wait = failover.failed(retry_after(answer.headers))
                if wait is None:
                    return answer
                answer.close()
            failover.close()
            await _wait(wait)

    async def _ask(
        self, failover: Failover, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        backend = failover.backend
        if backend.provider_parameters is not None:
            return await litellm.ask(backend, exchange, path)
        url, headers = backend.url.removesuffix(CHAT) + path, backend.headers
        if path == TOKENIZE:
            url = urllib.parse.urljoin(backend.url.removesuffix(CHAT), path)
        body = exchange.body_for(backend.model, callbacks if backend.takes_extensions else ())
        if failover.attempt_id and backend.takes_extensions:
            headers = {**headers, SESSION_HEADER: urllib.parse.quote(failover.attempt_id)}
        sent = await self._pool.post(url, body, headers)
        return Answer(sent.status, sent.headers, sent.chunks(), sent.close)


async def _wait(seconds: float) -> None:
    """Wait for at least so long; the event loop's own timers may be early by what it was busy."""
    until, left = time.monotonic() + seconds, seconds
    while left > 0:
        await asyncio.sleep(left)
        left = until - time.monotonic()
