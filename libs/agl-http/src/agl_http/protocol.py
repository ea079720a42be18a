"""uvicorn's side of HTTP, at half its cost for what is nearly every request."""

import asyncio
import functools
import re
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from agl_http.guard import GuardedProtocol
from agl_http.layers import GRANT, HEADERS, RECEIVED, ErrorGuard, Message

_is_plain_path = re.compile(rb"/[\w/.~-]*").fullmatch
_PLAIN_HEADERS = {
    *b"accept accept-encoding authorization connection content-length content-type host".split(),
    *(b"user-agent", *RECEIVED.values()),
}


class _Exchange:
    """A plain request and its answer; to uvicorn's protocol it is a cycle of its own."""

    def __init__(self, protocol: "PlainProtocol") -> None:
        self.protocol = protocol
        self.parts: list[bytes] = []
        self.start: Message | None = None
        self.keep_alive, self.disconnected = True, False
        self.is_read = self.response_started = self.response_complete = False

    @functools.cached_property
    def message_event(self) -> asyncio.Event:
        """Set when the answer is complete, or the client is gone; few wait for it."""
        return asyncio.Event()

    async def receive(self) -> Message:
        if not self.is_read:
            # Let go of it: an idle connection keeps its last cycle.
            self.is_read, body, self.parts = True, b"".join(self.parts), []
            return {"type": "http.request", "body": body, "more_body": False}
        await self.message_event.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message  # goes out with what follows
            return
        protocol, more = self.protocol, message.get("more_body", False)
        if protocol.flow.write_paused:
            await protocol.flow.drain()
        if self.disconnected:
            return
        head, self.start = self._head(self.start) if self.start else b"", None
        protocol.transport.write(head + message.get("body", b""))
        if not more:
            self.response_complete = True
            if "message_event" in vars(self):
                self.message_event.set()
            if not self.keep_alive:
                protocol.transport.close()
            protocol.on_response_complete()

    def _head(self, start: Message) -> bytes:
        self.response_started = True
        headers = [*self.protocol.server_state.default_headers, *start["headers"]]
        # What has no length ends with the connection.
        if not self.keep_alive or b"content-length" not in dict(headers):
            headers.append((b"connection", b"close"))
            self.keep_alive = False
        lines = [b"%s: %s\r\n" % header for header in headers]
        head = b"".join([STATUS_LINE[start["status"]], *lines, b"\r\n"])
        if head.count(b"\n") != len(headers) + 2:
            raise ValueError(f"a header of the answer has a line break: {headers!r}")
        return head

    def ended(self, task: "asyncio.Task[None]") -> None:
        self.protocol.tasks.discard(task)
        if not self.response_complete:
            self.protocol.transport.close()


class PlainProtocol(GuardedProtocol):
    """Hands a plain request over when it is there as a whole; see ``ErrorGuard.plain``."""

    app: ErrorGuard

    def on_request(self, headers: dict[bytes, bytes]) -> None:
        app, method = self.app, self.parser.get_method()
        if (
            _is_plain_path(self.url)
            and method in (b"GET", b"POST")
            and headers.keys() <= _PLAIN_HEADERS
            and len(headers) == len(self.headers)
            and int(headers.get(b"content-length", b"0")) <= app.max_body_bytes
            and (grant := app.grant_of(headers.get(b"authorization", b""))) is not None
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
        ):
            path, verb = self.url.decode(), method.decode()
            self.scope.update(method=verb, path=path, raw_path=self.url, query_string=b"")
            cast(dict[str, Any], self.scope).update({GRANT: grant, HEADERS: headers})
            self.cycle = _Exchange(self)
        else:
            super().on_request(headers)

    def on_part(self, body: bytes) -> None:
        if type(self.cycle) is not _Exchange:
            return super().on_part(body)
        return self.cycle.parts.append(body)

    def on_whole(self) -> None:
        cycle = self.cycle
        if type(cycle) is not _Exchange:
            return super().on_whole()
        task = self.loop.create_task(self.app.plain(self.scope, cycle.receive, cycle.send))
        self.tasks.add(task)
        return task.add_done_callback(cycle.ended)
