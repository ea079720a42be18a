"""The gateway's own side of a call: a pool of connections to the backends."""

import functools
import io
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, Self

import aiohttp
from yarl import URL

from agl_gateway import litellm
from agl_gateway.backend import Answer
from agl_gateway.dialect import TOKENIZE, Exchange
from agl_gateway.errors import BrokenOffError, RefusedError
from agl_gateway.pool import CONNECT_SECONDS, Pool
from agl_gateway.routing import Tries, rest
from agl_models.provider_errors import retry_after

CHAT = "chat/completions"
RETRIED_STATUS = (429, 502, 503, 504)
SESSION_HEADER = "x-session-id"
"""Tells a server of our own which calls share a beginning: those of one attempt."""
LARGE_BODY = 2**19
"""From this size on the body goes out in pieces, which leaves the event loop to others."""


class _AiohttpAnswer(Answer):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOffError(str(error) or type(error).__name__) from None

    def close(self) -> None:
        self._response.release()


class Upstream(Protocol):
    """What answers calls: backends, or something in their place."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def open(
        self, tries: Tries, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        """Send a call, and return its answer when status and headers are there.

        Args:
            tries: Who shall answer, and who else when that fails.
            exchange: The call.
            path: What is called, under the backend's ``api_base``.
            callbacks: What to ask the backend for, if it takes such things.

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
        await self._pool.close()
        await self._session.close()

    async def open(
        self, tries: Tries, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        while True:
            backend = tries.take()
            try:
                answer = await self._ask(tries, exchange, path, callbacks)
            except (aiohttp.ClientError, OSError) as error:
                wait = tries.failed()
                if wait is None:
                    raise RefusedError(
                        502,
                        f"the backend of model {backend.model_name!r} at {backend.url} cannot be "
                        f"reached after {tries.number} tries: {str(error) or type(error).__name__}",
                    ) from None
            else:
                if answer.status not in RETRIED_STATUS:
                    backend.rest_seconds = 0.0
                    return answer
                wait = tries.failed(retry_after(answer.headers))
                if wait is None:
                    return answer
                answer.close()
            tries.close()
            await rest(wait)

    async def _ask(
        self, tries: Tries, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        backend = tries.backend
        if backend.provider_parameters is not None:
            return await litellm.ask(backend, exchange, path)
        url, headers = backend.url.removesuffix(CHAT) + path, backend.headers
        if path == TOKENIZE:
            url = urllib.parse.urljoin(backend.url.removesuffix(CHAT), path)
        body = exchange.body_for(backend.model, callbacks if backend.takes_extensions else ())
        if tries.attempt_id and backend.takes_extensions:
            headers = {**headers, SESSION_HEADER: urllib.parse.quote(tries.attempt_id)}
        post = self._pool.post if url.startswith("http://") else self._post_by_aiohttp
        return await post(url, body, headers)

    async def _post_by_aiohttp(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        post = functools.partial(
            self._session.post, URL(url, encoded=True), headers=headers, allow_redirects=False
        )
        data = body if len(body) < LARGE_BODY else io.BytesIO(body)
        try:
            return _AiohttpAnswer(await post(data=data))
        except aiohttp.ServerDisconnectedError:
            # Most often a kept connection that the backend closed just now: try another.
            return _AiohttpAnswer(await post(data=data))
