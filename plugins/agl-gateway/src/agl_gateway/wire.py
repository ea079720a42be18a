"""The few pieces of HTTP that the gateway needs on its agents' side."""

import asyncio
import json
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from types import TracebackType
from typing import Any

from agl_gateway.errors import ClientGoneError, RefusedError, shorten

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body of a request.

    Raises:
        RefusedError: It is larger than ``limit`` bytes.
        ClientGoneError: The client hung up first.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client closed the connection while it sent the request")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RefusedError(413, f"the request body is larger than {limit} bytes")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_request(body: bytes) -> dict[str, Any]:
    """A chat completion request.

    Raises:
        RefusedError: It is not one.
    """
    try:
        request = json.loads(body)
    except ValueError as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise RefusedError(400, f"expected a JSON object as request body, got {shorten(body)}")
    if not isinstance(request.get("messages"), list):
        raise RefusedError(400, "the request has no 'messages'; expected a list of messages")
    return request


class Reply:
    """The answer to one request, sent whole or piece by piece."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.is_ended = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.is_started = True
        pairs = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, body: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        """Send the last piece."""
        self.is_ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send everything at once; JSON unless ``headers`` say otherwise."""
        length = {"content-length": str(len(body))}
        await self.start(status, {"content-type": "application/json", **(headers or {}), **length})
        await self.end(body)


class DisconnectWatch:
    """Ends the block with ``ClientGoneError`` as soon as the client hangs up."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._watch())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGoneError(
                "the client closed the connection before the answer was complete"
            ) from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()


async def server_sent_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """The complete events (their blank line included) that each chunk brings; a rest comes last."""
    buffer = b""
    async for chunk in chunks:
        buffer += chunk
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *events, buffer = buffer.split(b"\n\n")
        if events:
            yield [event + b"\n\n" for event in events]
    if buffer.strip():
        yield [buffer]


def event_data(event: bytes) -> bytes:
    """What stands after ``data:`` in an event; empty for a comment."""
    lines = event.split(b"\n")
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
