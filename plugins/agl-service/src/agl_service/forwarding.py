"""Passes requests on to the store and the model of a job, so that a server has one address.

These listen on 127.0.0.1, on ports of their own; what they answer goes back piece by piece. What
another server runs is passed on to that one.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable

import aiohttp
from yarl import URL

from agl_http.guard import max_connections
from agl_http.layers import App, Receive, Scope, Send, answer, disconnected, header

PATH = re.compile(r"/runs/([^/]+)/([^/]+)/(store|model)(/.*)")
OF_ONE_CONNECTION = frozenset(
    {b"connection", b"date", b"expect", b"host", b"keep-alive", b"te", b"trailer"}
    | {b"transfer-encoding"}
)
"""Headers that are not passed on."""
PASSED_ON = b"x-agl-passed-on"
"""Header of what another server has passed on: it goes no further."""
AWAY_SECONDS = b"1"
"""After which a request may come again to a job that does not run."""


class Forwarding:
    """An ASGI application of ``/runs/USER/JOB/store/...`` and ``/runs/USER/JOB/model/...``.

    Who may ask for what is not looked at here: store and model take the tokens of their job alone.

    Args:
        app: Answers all other requests.
        address_of: Where a store or a model is, by user, job, and which of the two it is; "" where
            no server runs that job.
    """

    def __init__(self, app: App, address_of: Callable[[str, str, str], str]) -> None:
        self._app, self._address_of = app, address_of
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # until the server ends
            if self._session is not None:
                await self._session.close()
            return
        found = PATH.fullmatch(scope["raw_path"].decode("latin-1"))
        if found is None:
            await self._app(scope, receive, send)
            return
        user, job, which, path = found.groups()
        address = self._address_of(user, job, which)
        if not address or ("/runs/" in address and header(scope, PASSED_ON)):
            await away(send, scope, "if there is such a job")
            return
        query = b"?" * bool(scope["query_string"]) + scope["query_string"]
        url = URL(address + path + query.decode("latin-1"), encoded=True)
        is_received = asyncio.Event()

        async def until_gone() -> None:
            await is_received.wait()
            await disconnected(receive)

        passing = asyncio.ensure_future(self._pass_on(scope, url, receive, is_received, send))
        watching = asyncio.ensure_future(until_gone())
        try:
            await asyncio.wait({passing, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()
            watching.cancel()
            await asyncio.wait({passing, watching})
        if not passing.cancelled():
            passing.result()

    async def _pass_on(
        self, scope: Scope, url: URL, receive: Receive, is_received: asyncio.Event, send: Send
    ) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Clients have half of the files that the process may open.
                connector=aiohttp.TCPConnector(limit=max_connections() * 3 // 4),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        has_body = header(scope, b"content-length") or header(scope, b"transfer-encoding")
        if not has_body:
            is_received.set()
        try:
            found = await self._session.request(
                scope["method"],
                url,
                headers=[
                    (name.decode(), value.decode("utf-8", "replace"))
                    for name, value in scope["headers"]
                    if name not in OF_ONE_CONNECTION
                ]
                + [(PASSED_ON.decode(), "1")],
                data=_pieces(receive, is_received) if has_body else None,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectionError as error:
            await away(send, scope, error)
            return
        async with found:
            headers = [one for one in found.raw_headers if one[0].lower() not in OF_ONE_CONNECTION]
            start = {"type": "http.response.start", "status": found.status, "headers": headers}
            await send(start)
            async for piece in found.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def away(send: Send, scope: Scope, why: object) -> None:
    """Answer that a job does not run, in the same way where there is none."""
    said = f"{scope['path']}: its job does not run, or begins in a moment: {why}"
    await answer(send, 503, said, "StoreUnavailableError", (b"retry-after", AWAY_SECONDS))


async def _pieces(receive: Receive, is_received: asyncio.Event) -> AsyncGenerator[bytes]:
    """The body of a request, as it comes; who goes in the middle of it gets no answer."""
    while (message := await receive())["type"] == "http.request":
        if body := message.get("body"):
            yield body
        if not message.get("more_body", False):
            is_received.set()
            return
    is_received.set()
    await asyncio.Event().wait()
