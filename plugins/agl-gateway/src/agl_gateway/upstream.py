"""The gateway's own side of a call: a pool of connections to the backends."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, Self

import aiohttp
from yarl import URL

from agl_gateway.backends import Backend
from agl_gateway.dialect import Exchange
from agl_gateway.errors import RefusedError

CONNECT_SECONDS = 10.0
CHAT = "chat/completions"
RETRIED_STATUS = (429, 502, 503, 504)
LARGE_BODY = 2**19
"""From this size on the body goes out in pieces, which leaves the event loop to others."""


class BrokenOffError(Exception):
    """The backend ended its answer in the middle."""


class Answer(Protocol):
    """What a backend answers, as far as it has come."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """All of it.

        Raises:
            BrokenOffError: There is no more of it.
        """
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Pieces as they arrive; raises as ``read`` does."""
        ...

    def close(self) -> None:
        """Let go of it, whether it was read or not."""
        ...


class HttpAnswer:
    """An ``Answer`` that comes over HTTP."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOffError(str(error) or type(error).__name__) from None

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOffError(str(error) or type(error).__name__) from None

    def close(self) -> None:
        self._response.release()


class Upstream:
    """Opens calls to backends, and tries again where that may help.

    Args:
        num_retries: Further tries when a backend cannot be reached or answers 429, 502, 503 or
            504; the waits double, from 0.1 s. A stream that has begun is never tried again.
    """

    def __init__(self, num_retries: int) -> None:
        self._num_retries = num_retries
        self._urls: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        # No limit in time or number: the agent's deadline holds, not ours.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**18,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept"),
            headers={"content-type": "application/json", "accept-encoding": "identity"},
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def open(
        self,
        choose: Callable[[], Backend],
        exchange: Exchange,
        path: str,
        callbacks: tuple[str, ...],
    ) -> Answer:
        """Send a call, and return its answer when status and headers are there.

        Args:
            choose: Who shall answer; asked again for every try.
            exchange: The call.
            path: What is called, under the backend's ``api_base``.
            callbacks: What to ask the backend for, if it takes such things.

        Raises:
            RefusedError: There is no answer that could be passed on.
        """
        tries, stale, wait = 0, False, 0.1
        while True:
            backend = choose()
            body = exchange.body_for(backend.model, callbacks if backend.takes_extensions else ())
            url = backend.url.removesuffix(CHAT) + path
            try:
                response = await self._session.post(
                    self._urls.get(url) or self._urls.setdefault(url, URL(url, encoded=True)),
                    data=body if len(body) < LARGE_BODY else io.BytesIO(body),
                    headers=backend.headers,
                    allow_redirects=False,
                )
            except aiohttp.ServerDisconnectedError as error:
                # Most often a kept connection that the backend closed just now: try another one.
                failure = str(error) or type(error).__name__
                if not stale:
                    stale = True
                    continue
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = str(error) or type(error).__name__
            else:
                if response.status not in RETRIED_STATUS or tries >= self._num_retries:
                    return HttpAnswer(response)
                failure = ""
                response.release()
            if tries >= self._num_retries:
                raise RefusedError(
                    502,
                    f"the backend of model {backend.model_name!r} at {url} cannot be "
                    f"reached after {tries + 1} tries: {failure}",
                )
            tries += 1
            await asyncio.sleep(wait)
            wait *= 2
