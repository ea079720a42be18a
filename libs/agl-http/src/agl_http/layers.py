"""Plain ASGI layers around a server: token, body size, repeated posts, last-resort errors.

They are callables and not Starlette middleware classes, which cost more than half a millisecond a
request.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from agl.semconv import CLIENT_GONE

logger = logging.getLogger("agl.http")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON, EVENTS = b"application/json", b"text/event-stream"
IDEMPOTENCY_KEY = "Idempotency-Key"
ABANDONED = "AGL-Abandoned"
"""Header of a post that asks what another one, of the same key, had claimed for nobody any more."""
ATTEMPTS = "AGL-Attempts"
"""Header of a runner: the tokens of attempts that it has claimed, with commas between."""
FENCE = "AGL-Fence"
"""Header of a writer that may be replaced: version, kind and key of its ``Fence``."""
RECEIVED = {n: n.lower().encode() for n in (IDEMPOTENCY_KEY, ABANDONED, ATTEMPTS, FENCE)}
"""Names of these headers as ASGI has them."""
CLOSING = "agl.closing"  # in the state of a request: an ``asyncio.Event``, set as the server ends


async def answer(
    send: Send, status: int, detail: str, error_type: str, *headers: tuple[bytes, bytes]
) -> None:
    """Send an error in the form that every route uses."""
    body = json.dumps({"detail": detail, "error_type": error_type}).encode()
    await send_whole(send, status, body, JSON, *headers)


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """The whole body of a request; None when the client has gone.

    Raises:
        OverflowError: It has more than ``limit`` bytes.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise OverflowError(f"the body has {limit + 1} bytes or more")
        if not message.get("more_body", False):
            return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone; what else it sends until then is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


def first(body: bytes, receive: Receive) -> Receive:
    """Receives this as the whole body, and then what else comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_first() -> Message:
        return messages.pop() if messages else await receive()

    return receive_first


async def send_whole(
    send: Send, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """An answer in one go; ``kind`` is its media type."""
    length = (b"content-length", str(len(body)).encode())
    await begin(send, status, kind, length, *headers)
    await send({"type": "http.response.body", "body": body})


async def begin(send: Send, status: int, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Begin an answer; its body follows."""
    given = [(b"content-type", kind), *headers]
    await send({"type": "http.response.start", "status": status, "headers": given})


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, or nothing; ``name`` in lower case."""
    if (known := scope.get(HEADERS)) is not None:
        return known.get(name, b"")
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


def gunzip(data: bytes, limit: int) -> bytes:
    """Decompress.

    Raises:
        OverflowError: The result has more than ``limit`` bytes; no more than that was made.
        ValueError: It is no gzip, or more than one member of it.
    """
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        out = member.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    if len(out) > limit:
        raise OverflowError(f"more than {limit} bytes when decompressed")
    if not member.eof:
        raise ValueError("not gzip: it ends early")
    if member.unused_data:
        raise ValueError("more than one member of gzip; send one, and nothing behind it")
    return out


ROUTE, GRANT, HEADERS = "agl.route", "agl.grant", "agl.headers"
"""Keys of a scope: the path of the route that answers, if it is not FastAPI's; what the request's
token allows; and the headers by name, if none stands there twice."""


@dataclass
class ErrorGuard:
    """Answers what nobody caught with a bare 500, and logs it; counts requests, and logs them."""

    app: App
    observe: Callable[[str, str, int, float], None]
    """Told of each request: method, route, status, seconds."""
    plain: Any = None
    """Answers a plain request, whose body is there and whose token ``grant_of`` has read."""
    grant_of: Callable[[bytes], Any] = lambda header: None
    max_body_bytes: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status = 0
        begin = time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            # With an answer under way, FastAPI has called its handler for this, and raises again.
            if not status:
                logger.exception("%s %r failed", scope["method"], scope["path"])
                await answer(
                    watched, 500, "internal error; see the server's log", "InternalServerError"
                )
        seconds = time.perf_counter() - begin
        # Without an answer, the client was gone before there was one.
        self.observe(scope["method"], _route_of(scope), status or CLIENT_GONE, seconds)
        logger.debug("%s %r %d %.1f ms", scope["method"], scope["path"], status, seconds * 1000)
        return None


def _route_of(scope: Scope) -> str:
    """The path of the route that answered, with its parameters unfilled; else ``none``."""
    route: str | None = scope.get(ROUTE)
    return route or getattr(scope.get("route"), "path", "none")


@dataclass
class Authenticated:
    """Requires a token in the header ``Authorization``, and notes what it allows."""

    app: App
    grant_of: Callable[[bytes], Any]
    """Reads the grant of a header; None if its token is missing or unknown."""
    open_paths: frozenset[str]
    """Paths that need no token."""
    told: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])
    """Clients of whose refusal the log has told; a fleet may wait for one of them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self.open_paths:
            return await self.app(scope, receive, send)
        grant = scope[GRANT] = self.grant_of(header(scope, b"authorization"))
        if grant is None:
            way = "a client with no option for tokens can take the URL http://agl:TOKEN@HOST:PORT"
            who = (scope.get("client") or ("a Unix socket",))[0], header(scope, b"user-agent")[:80]
            if who not in self.told and len(self.told) < 100:
                self.told.add(who)
                logger.warning("missing or wrong token in a request from %s (%r); %s", *who, way)
            return await answer(
                send,
                401,
                "missing or wrong token; send the header 'Authorization: Bearer TOKEN', or use the "
                f"address that the server printed when it started; {way}",
                "Unauthorized",
                (b"www-authenticate", b'Basic realm="agl"'),
            )
        return await self.app(scope, receive, send)


@dataclass
class WholeBody:
    """Reads the request's body before the application sees the request."""

    app: App
    max_bytes: int
    """A longer body is answered with 413."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        length = header(scope, b"content-length")
        try:
            if length.isdigit() and int(length) > self.max_bytes:
                raise OverflowError(f"the body has {int(length)} bytes")
            body = await read_body(receive, self.max_bytes)
        except OverflowError as error:
            # Read to the end, for a client that is still sending would see a broken connection
            # instead of the answer; but not for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    while (await receive()).get("more_body", False):
                        pass
            return await _too_large(send, str(error), self.max_bytes)
        if body is None:
            return None
        return await self.app(scope, first(body, receive), send)


async def _too_large(send: Send, what: str, limit: int) -> None:
    await answer(
        send,
        413,
        f"{what}; this server takes {limit}. Send fewer records at once, or start a store's "
        "server or a gateway with a larger max_body_bytes",
        "BodyTooLarge",
        (b"connection", b"close"),
    )


MAX_UNPACKED_BYTES = 2**30


@dataclass
class Unpacked:
    """Unpacks a whole body that is gzip."""

    app: App
    max_bytes: int
    """A body that is longer when unpacked is answered with 413."""
    held: int = 0
    """Bytes of all that were unpacked and are in work; at most ``MAX_UNPACKED_BYTES``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = header(scope, b"content-encoding").lower() if scope["type"] == "http" else b""
        if encoding in (b"", b"identity") or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        if encoding != b"gzip":
            return await answer(
                send,
                415,
                f"Content-Encoding {encoding.decode('latin-1')!r} is not known; send gzip or none",
                "UnsupportedEncoding",
            )
        try:
            body = gunzip((await receive())["body"], self.max_bytes)
        except OverflowError as error:
            return await _too_large(send, f"the body has {error}", self.max_bytes)
        except ValueError as error:
            return await answer(send, 400, f"the body is {error}", "InvalidBody")
        self.held += len(body)
        try:
            if self.held > MAX_UNPACKED_BYTES:
                why = f"unpacked bodies of {MAX_UNPACKED_BYTES} bytes are in work; try again later"
                return await answer(send, 503, why, "ServiceUnavailable", (b"retry-after", b"1"))
            return await self.app(scope, first(body, receive), send)
        finally:
            self.held -= len(body)


MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 10_000, 64 * 1024 * 1024
_KEY, _ABANDONED = RECEIVED[IDEMPOTENCY_KEY], RECEIVED[ABANDONED]
_Key = tuple[bytes, ...]
_ANY = b""
"""Instead of the digest of a body: any is the same."""


class RememberedPosts:
    """Answers a repeated post from memory, so that it is carried out once.

    Requests are the same when path, ``Idempotency-Key`` and ``Authorization`` are; one with another
    body is then refused. A repetition that arrives while the first is still in work waits for it.
    Only successes are remembered. The memory is this process's: it ends with the server, and drops
    the oldest answers first.

    One with ``AGL-Abandoned`` gets what is remembered, whatever its body. Where nothing is, it is
    carried out itself, and answers for the abandoned one, which may still be under way.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._answers: OrderedDict[_Key, tuple[bytes, list[Message]]] = OrderedDict()
        self._in_work: dict[_Key, tuple[bytes, asyncio.Future[None]]] = {}
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = header(scope, _KEY) if scope["type"] == "http" else b""
        if not name or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        key = (name, scope["path"].encode(), header(scope, b"authorization"))
        body = (await receive())["body"]  # the whole; see WholeBody
        digest = _ANY if header(scope, _ABANDONED) else hashlib.sha256(body).digest()
        while (known := self._in_work.get(key) or self._answers.get(key)) is not None:
            if known[0] != digest and _ANY not in (known[0], digest):
                return await answer(
                    send,
                    422,
                    f"Idempotency-Key {name.decode('latin-1')[:200]!r} was sent with another body; "
                    "repeat a request as it was, or make a new key for a new one",
                    "IdempotencyKeyReused",
                )
            if isinstance(known[1], list):
                self._answers.move_to_end(key)
                for message in known[1]:
                    await send(message)
                return None
            await asyncio.shield(known[1])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_work[key] = digest, done
        messages: list[Message] = []

        async def recorded(message: Message) -> None:
            messages.append(message)
            await send(message)

        try:
            await self.app(scope, first(body, receive), recorded)
        finally:
            # In this order: whoever waits must find the answer. It is kept although sending may
            # have failed, for that is when it will be asked for again.
            if messages and messages[0]["status"] < 300:
                self._remember(key, digest, messages)
            del self._in_work[key]
            done.set_result(None)
        return None

    def _remember(self, key: _Key, digest: bytes, messages: list[Message]) -> None:
        if messages[-1].get("more_body", False) or len(messages) > 2:
            return  # unfinished, or a long page in pieces: reading it again is harmless
        self._answers[key] = digest, messages
        self._size += _size(messages)
        while len(self._answers) > MAX_REMEMBERED or self._size > MAX_REMEMBERED_BYTES:
            _, (_, dropped) = self._answers.popitem(last=False)
            self._size -= _size(dropped)


def _size(messages: list[Message]) -> int:
    return 500 + sum(len(message.get("body", b"")) for message in messages)
