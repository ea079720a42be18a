"""A small HTTP/1.1 client: posts over kept connections, a fraction of a full client's cost.

It follows no redirect, and knows no proxy.
"""

import asyncio
import contextlib
import functools
import select
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import httptools

from agl_gateway.errors import BrokenOffError

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0
"""A kept connection that was idle for longer is not used: servers close theirs after five."""
BUFFERED_BYTES = 2**20
"""So much of a stream that nobody takes is kept; then the backend has to wait."""


class Server(NamedTuple):
    """Whom a connection leads to."""

    host: str
    port: int
    is_secure: bool


class ClosedWhileIdleError(BrokenOffError):
    """The server closed a kept connection, without a byte of an answer."""


class Pool:
    """Kept connections to any number of servers."""

    def __init__(self) -> None:
        self._idle: dict[Server, list[Connection]] = {}
        self.open: set[Connection] = set()
        """At work or idle."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> "Connection":
        """Post JSON, and return when the answer's status and headers are there.

        The caller reads the answer from the connection, and calls its ``close`` in the end.

        Raises:
            OSError: There is no answer.
        """
        server, head = _head(url, tuple(headers.items()))
        request = head % len(body) + body
        kept = self._take(server)
        if kept is not None:
            # A server that closes a kept connection just now has not seen the request.
            with contextlib.suppress(ClosedWhileIdleError):
                return await kept.send(request)
        return await (await self._connect(server)).send(request)

    async def close(self) -> None:
        """Close every connection; no calls may follow."""
        for connection in self.open:
            connection.abort()
        await asyncio.sleep(0)

    def _take(self, server: Server) -> "Connection | None":
        idle = self._idle.get(server)
        oldest = time.monotonic() - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and connection.is_quiet:
                return connection
            connection.abort()
        return None

    async def _connect(self, server: Server) -> "Connection":
        loop, connection = asyncio.get_running_loop(), Connection(self, server)
        secure = _trusting_the_system() if server.is_secure else None
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.create_connection(lambda: connection, server.host, server.port, ssl=secure)
        return connection

    def keep(self, server: Server, connection: "Connection") -> None:
        self._idle.setdefault(server, []).append(connection)

    def drop(self, server: Server, connection: "Connection") -> None:
        self.open.discard(connection)
        if connection in (idle := self._idle.get(server, [])):
            idle.remove(connection)


class Connection(asyncio.Protocol):
    """A connection, and the answer to the call that it carries at this moment."""

    def __init__(self, pool: Pool, server: Server) -> None:
        self._pool = pool
        self._server = server
        self._parser = httptools.HttpResponseParser(self)
        self._was_kept = False
        self._lost: Exception | None = None
        self.idle_since = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._has_headers = self._is_complete = self._is_paused = False
        self._is_idle = self._stays_open = False
        self._waiter: asyncio.Future[None] | None = None

    # --- the call

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing has come that the event loop has not read yet.

        What comes unasked must not be taken for the next answer, and a connection that the server
        has closed can be read, too.
        """
        is_open = not self._transport.is_closing()
        return is_open and not _can_be_read(self._transport.get_extra_info("socket"))

    async def send(self, request: bytes) -> "Connection":
        """Send a request, and return when the answer's status and headers are there."""
        self.headers = {}
        self._parts, self._size = [], 0
        self._has_headers = self._is_complete = self._is_idle = self._stays_open = False
        self._transport.write(request)
        try:
            while not self._has_headers:
                await self._more()
        except BaseException:
            self.abort()
            raise
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._parts:
                parts, self._parts, self._size = self._parts, [], 0
                self._resume()
                yield parts[0] if len(parts) == 1 else b"".join(parts)
            elif self._is_complete:
                return
            else:
                await self._more()

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, else close it."""
        if self._stays_open and self._lost is None:
            self._was_kept = self._is_idle = True
            self.idle_since = time.monotonic()
            self._resume()
            self._pool.keep(self._server, self)
        else:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    async def _more(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:  # what comes unasked must not be taken for the next answer
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = BrokenOffError(f"the answer is not HTTP: {error}")
            self._transport.abort()
        if self._size > BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.drop(self._server, self)
        ends_here = not {"content-length", "transfer-encoding"} & self.headers.keys()
        if self._has_headers and ends_here and exc is None:
            self._is_complete = True
        if self._lost is None:
            kind = BrokenOffError if self.headers or not self._was_kept else ClosedWhileIdleError
            self._lost = kind(f"the connection was closed{f': {exc}' if exc else ''}")
        self._wake()

    # --- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # "go on": the answer is still to come
            self.headers = {}
        else:
            self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_headers
        self._stays_open = self._is_complete and self._parser.should_keep_alive()


def _can_be_read(sock: Any) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@functools.cache
def _trusting_the_system() -> ssl.SSLContext:
    """Which certificates are taken; loaded once, as that takes a while."""
    return ssl.create_default_context()


@functools.lru_cache(1024)
def _head(url: str, headers: tuple[tuple[str, str], ...]) -> tuple[Server, bytes]:
    """The server, and the request's head with a place for the length."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.username is not None and "authorization" not in dict(headers):
        named = unquote(f"{parts.username}:{parts.password or ''}").encode()
        headers = (("authorization", f"Basic {b64encode(named).decode()}"), *headers)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = [
        f"POST {target} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        "accept-encoding: identity",
        *(f"{name}: {value}" for name, value in headers),
    ]
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ValueError(f"a header of {url} has a line break in it: {line.split(':')[0]!r}")
    head = "\r\n".join(lines).encode("latin-1").replace(b"%", b"%%")
    is_secure = parts.scheme == "https"
    server = Server(parts.hostname, parts.port or (443 if is_secure else 80), is_secure)
    return server, head + b"\r\ncontent-length: %d\r\n\r\n"
