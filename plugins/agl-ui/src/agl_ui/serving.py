"""The server of ``agl ui``: on loopback, for whoever has its address with the key in it."""

import asyncio
import contextlib
import hmac
import secrets
import webbrowser
from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl, quote, urlencode

import click
from starlette.applications import Starlette

from agl_http.commands import stop_signal
from agl_http.layers import CLOSING, App, Receive, Scope, Send, header, send_whole
from agl_http.server import ServerThread, bind
from agl_ui.app import HEADERS, routes
from agl_ui.data_sources import DataSources

COOKIE = "agl-ui-key"
_TEXT = b"text/plain; charset=utf-8"
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Keyed:
    """Lets in who shows the key: once in the address, which a cookie then stands for.

    Other users of this machine reach a server on loopback as well, and what it shows are tasks,
    answers and rewards.

    Args:
        app: What is kept.
        key: The key; None lets everybody in.
        port: It stands in the cookie's name: cookies do not tell the ports of a host apart.
    """

    def __init__(self, app: App, key: str | None, port: int) -> None:
        self._app, self._key, self._cookie = app, key, f"{COOKIE}-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or self._key is None:
            return await self._app(scope, receive, send)
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        is_new, is_known = self._is_key(dict(pairs).get("key", "")), self._is_known(scope)
        if is_known and not is_new:
            return await self._app(scope, receive, send)
        if not is_new:
            text = (
                "This page needs its key: open the full address that agl ui printed when it "
                "started, with ?key= in it, and take its cookie."
            )
            return await send_whole(send, 401, text.encode(), _TEXT, *_HEADERS)
        others = urlencode([pair for pair in pairs if pair[0] != "key"])
        # Relative, and a path of ours: what was asked for, without the key in the history, nor in
        # the addresses that people send on.
        path = f"/{quote(scope['path'].lstrip('/'), safe='/')}"
        back = f"{path}?{others}" if others else path
        kept = f"{self._cookie}={self._key}; Path=/; HttpOnly; SameSite=Lax"
        more = (b"location", back.encode()), (b"set-cookie", kept.encode())
        return await send_whole(send, 303, b"", _TEXT, *_HEADERS, *more)

    def _is_known(self, scope: Scope) -> bool:
        # Other programs of this host send theirs along, in forms that parsers of cookies refuse.
        cookies = header(scope, b"cookie").decode("latin-1").split(";")
        pairs = [cookie.strip().partition("=") for cookie in cookies]
        return any(name == self._cookie and self._is_key(value) for name, _, value in pairs)

    def _is_key(self, given: str) -> bool:
        return self._key is not None and hmac.compare_digest(
            given.encode(errors="replace"), self._key.encode()
        )


class Server:
    """Serves the pages of data sources from a thread of this process.

    Args:
        sources: What is shown.
        host: Where to listen, on loopback.
        port: 0 for a free one.
        is_open: Whether everybody who reaches it may look.
    """

    def __init__(
        self, sources: DataSources, host: str = "127.0.0.1", port: int = 0, *, is_open: bool = False
    ) -> None:
        self._key = None if is_open else secrets.token_urlsafe(24)
        sock = bind(host, port)
        number = sock.getsockname()[1]
        pages = Starlette(routes=routes(sources), lifespan=self._lifespan)
        self._thread = ServerThread(Keyed(pages, self._key, number), host, sock=sock)
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[dict[str, asyncio.Event]]:
        """Make the signal that ends those connections which tell of changes."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        yield {CLOSING: self._closing}
        self._loop = None

    def start(self) -> str:
        """Serve; the address, with the key in it."""
        self._thread.start()
        return self.address

    @property
    def address(self) -> str:
        """Where the page is, with the key in it."""
        return f"{self._thread.url}/" + (f"?key={self._key}" if self._key else "")

    def stop(self) -> None:
        """End, with those connections that tell of changes."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.stop()


async def serve(sources: DataSources, host: str, port: int, *, is_open: bool, browse: bool) -> None:
    """Serve until told to stop.

    Raises:
        AglError: The one store that was named cannot be read.
    """
    stop = stop_signal()
    await sources.check()
    server = Server(sources, host, port, is_open=is_open)
    click.echo(f"agl ui: {server.start()}", err=True)
    if browse:
        webbrowser.open(server.address)
    try:
        await stop.wait()
    finally:
        server.stop()
        await sources.close()
