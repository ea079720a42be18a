"""The few pieces of HTTP that the gateway needs on its agents' side."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Protocol, runtime_checkable

from agl_gateway.errors import ClientGoneError, RefusedError
from agl_http import layers
from agl_http.layers import Receive, Send
from agl_http.metrics import RequestMetrics

Headers = Iterable[tuple[bytes, bytes]]

JSON: Headers = ((b"content-type", b"application/json"),)
WATCH_AFTER_SECONDS = 0.005
"""A call that takes longer is broken off when its client hangs up."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body of a request.

    Raises:
        RefusedError: It is larger than ``limit`` bytes.
        ClientGoneError: The client hung up first.
    """
    try:
        body = await layers.read_body(receive, limit)
    except OverflowError:
        raise RefusedError(413, f"the request body is larger than {limit} bytes") from None
    if body is None:
        raise ClientGoneError("the client closed the connection while it sent the request")
    return body


@runtime_checkable
class Tracker(Protocol):
    """What counts requests; the backends of agl-metrics do."""

    def watch_requests(self) -> RequestMetrics:
        """What is told of each request."""
        ...

    def has_prometheus(self) -> bool:
        """Whether ``exposition`` has anything."""
        ...

    def exposition(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        ...


class Reply:
    """The answer to one request, sent whole or piece by piece."""

    __slots__ = ("_send", "before_last", "is_counted", "is_started", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.is_counted = True
        """Whether the request counts in this process' metrics."""
        self.status = 0
        self.before_last: Callable[[], Awaitable[None]] | None = None
        """What is waited for before the last piece goes out."""

    async def start(self, status: int, headers: Headers) -> None:
        self.is_started, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def settle(self) -> None:
        """Wait for what comes before the last piece; so who has it finds that done."""
        if self.before_last is not None:
            await self.before_last()

    async def end(self, body: bytes = b"") -> None:
        await self.settle()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def whole(self, status: int, body: bytes, headers: Headers = JSON) -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)


class Interruptible:
    """A block that somebody else can end: the client that hangs up, or ``interrupt``."""

    __slots__ = ("_cause", "_is_over", "_receive", "_timer", "_watcher", "task")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cause: Exception | None = None
        self._is_over = False
        self._watcher: asyncio.Task[None] | None = None

    def interrupt(self, cause: Exception) -> None:
        """End the block with this exception, unless it has ended."""
        if self._cause is None and not self._is_over:
            self._cause = cause
            self.task.cancel()

    async def __aenter__(self) -> "Interruptible":
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        # A task of its own costs more than most of the work on a quick call.
        self._timer = task.get_loop().call_later(WATCH_AFTER_SECONDS, self._begin)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._cause is None or self.task.uncancel() > 0:
            return
        if kind is None or kind is asyncio.CancelledError:
            raise self._cause from None

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        await layers.disconnected(self._receive)
        self.interrupt(
            ClientGoneError("the client closed the connection before the answer was complete")
        )
