"""What a server refuses before it looks at any token, and before any application sees it.

Other users of this machine, and web pages in its browsers, reach a server on loopback. A page is
known by its ``Origin``, and where its name was bound to this address (DNS rebinding), by ``Host``.
"""

import asyncio
import contextlib
import functools
import json
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agl.env import LightningEnvVar
from agl_http.addresses import is_loopback
from agl_http.layers import GRANT, HEADERS, RECEIVED, ErrorGuard, Message

MAX_HEAD_BYTES, MAX_HEADERS = 64 * 1024, 100
MAX_CONNECTIONS = 4096
"""Or half of the files that the process may open, where those are fewer."""
MAX_PIPELINED = 100
"""Requests of one connection that wait for the answer of another one."""
MAX_HELD_BYTES = 2**30
"""Of all bodies that are being received or answered."""
SINGLE = frozenset(
    b"authorization content-encoding content-type host idempotency-key origin".split()
)
"""Headers of which two could be read as either."""
HEAD_SECONDS, BODY_SECONDS, LAST_SECONDS = 20.0, 60.0, 5.0
"""How long the head of a request may take, a body may be silent, and a refused one is read. Who
takes nothing of an answer for as long as a body may be silent loses the connection."""
FORM_TYPES = (b"text/plain", b"application/x-www-form-urlencoded")
"""What a page may post to anybody without asking first; files too, which some servers take."""
_is_plain_path = re.compile(rb"/[\w/.~-]*").fullmatch
_PLAIN_HEADERS = {
    *b"accept accept-encoding authorization connection content-length content-type host".split(),
    *(b"user-agent", *RECEIVED.values()),
}


@dataclass
class Guard:
    """Which requests one server takes."""

    allowed_hosts: Collection[str] | None
    """Names that ``Host`` may have; None for any."""
    origins: Collection[str] = ()
    """Of other sites whose pages may call; ``*`` for all."""
    held: int = 0
    """Bytes of bodies."""
    _known_hosts: set[bytes] = field(default_factory=set[bytes])

    def refusal(self, headers: dict[bytes, bytes], method: bytes) -> tuple[int, str] | None:
        """Status and reason, where the head of a request is reason enough."""
        host = headers.get(b"host")
        if host is not None and host not in self._known_hosts:
            if not self._may_be(host):
                return 421, (
                    f"Host {host.decode('latin-1')[:200]!r} is not a name of this server; where it "
                    f"is one, add it to {LightningEnvVar.AGL_ALLOWED_HOSTS.value}"
                )
            if len(self._known_hosts) < MAX_HEADERS:
                self._known_hosts.add(host)
        if (origin := headers.get(b"origin")) is not None and "*" not in self.origins:
            site = origin.decode("latin-1")
            is_own = host is not None and origin.partition(b"://")[2] == host
            if not is_own and site not in self.origins:
                return 403, (
                    f"pages of {site[:200]!r} may not call this server; where they shall call a "
                    "store, name their origin in its cors_allow_origins (agl store --cors-origin)"
                )
        kind = headers.get(b"content-type", b"").lower()
        if method == b"POST" and kind.startswith(FORM_TYPES):
            return 415, f"Content-Type {kind.decode('latin-1')[:200]!r}: send application/json"
        return None

    def _may_be(self, host: bytes) -> bool:
        name, allowed = name_of(host.decode("latin-1")), self.allowed_hosts
        return allowed is None or is_loopback(name) or name in allowed


def name_of(host: str) -> str:
    """What ``Host`` calls a server, without its port; an IPv6 address stands in brackets."""
    return re.sub(r"\.?(:\d*)?$", "", host.strip().lower(), count=1).strip("[]")


def max_connections() -> int:
    """How many connections a server of this process takes."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


def refused(status: int, why: str) -> tuple[bytes, bytes]:
    """Head and body of an answer that ends the connection; OpenAI's clients show ``error``."""
    kind = HTTPStatus(status).phrase.title().replace(" ", "")
    body = json.dumps({"detail": why, "error_type": kind, "error": {"message": why}}).encode()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[status] + head % len(body), body


class _Exchange:
    """A plain request and its answer; to uvicorn's protocol it is a cycle of its own."""

    def __init__(self, protocol: "GuardedProtocol") -> None:
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


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's side of HTTP, with limits, and with a short way for nearly all requests."""

    app: Any
    cycle: Any
    parser: Any

    def __init__(self, *args: Any, guard: Guard, **options: Any) -> None:
        super().__init__(*args, **options)
        self.guard = guard
        self._in_head, self._is_refused, self._held = True, False, 0
        self._received = 0  # since the request began, or a part of its body came
        self._begun = self._heard = 0.0  # when the head, and the last part of it all, came
        self._looking: asyncio.TimerHandle | None = None
        self._unread, self._unread_seconds = 0, 0.0  # bytes that nobody takes, and since when

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > (limit := max_connections()):
            self._refuse(503, f"the server has {limit} connections; try again later")
        else:
            self._begun = self.loop.time()
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        if not self._received:
            self._begun = self._heard
        self._received += len(data)
        super().data_received(data)
        if self._received > MAX_HEAD_BYTES:  # or the trailers, after a body in chunks
            self._refuse(431, f"the head has more than {MAX_HEAD_BYTES} bytes")

    def _look(self) -> None:
        """End a connection that is silent; a timer for each request would cost more than it."""
        now, period = self.loop.time(), min(HEAD_SECONDS, BODY_SECONDS)
        is_begun = bool(self._received) or self.cycle is None or not self._in_head
        limit, since = (HEAD_SECONDS, self._begun) if self._in_head else (BODY_SECONDS, self._heard)
        self._unread, before = self.transport.get_write_buffer_size(), self._unread
        is_stuck = 0 < self._unread == before
        self._unread_seconds = self._unread_seconds + period if is_stuck else 0.0
        if self._unread_seconds >= BODY_SECONDS:  # else its answer would lie here for ever
            self.transport.abort()
            return
        self._looking = self.loop.call_later(period, self._look)
        is_late = is_begun and now - since > limit * 0.99
        if is_late and not (self.flow.read_paused or self.transport.is_closing()):
            self._refuse(408, "the request did not come in time")

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(503, f"{MAX_PIPELINED} requests wait on this connection; use another one")
        if self.transport.is_closing():  # the rest of what came with it is parsed, too
            self._is_refused = True
            return
        headers = dict(self.headers)
        refusal = self.guard.refusal(headers, self.parser.get_method())
        if len(headers) < len(self.headers):
            names = [name for name, _ in self.headers]
            for name in SINGLE & headers.keys():
                if names.count(name) > 1:
                    refusal = 400, f"there is more than one header {name.decode()!r}; send one"
        if len(self.headers) > MAX_HEADERS or self._received > MAX_HEAD_BYTES:
            size = sum(len(name) + len(value) for name, value in self.headers)
            if len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
                refusal = 431, f"the head has more than {MAX_HEADERS} headers, or is too long"
        self._is_refused, self._received = refusal is not None, 0
        if refusal is not None:
            app, self.app = self.app, _refusing(*refusal)
            super().on_headers_complete()
            self.app = app
        elif not self._is_plain(headers):
            super().on_headers_complete()

    def _is_plain(self, headers: dict[bytes, bytes]) -> bool:
        """Hand a request over as a whole, if ``ErrorGuard.plain`` answers it: for half the cost."""
        app, method = self.app, self.parser.get_method()
        if not (
            isinstance(app, ErrorGuard)
            and _is_plain_path(self.url)
            and method in (b"GET", b"POST")
            and headers.keys() <= _PLAIN_HEADERS
            and len(headers) == len(self.headers)
            and int(headers.get(b"content-length", b"0")) <= app.max_body_bytes
            and (grant := app.grant_of(headers.get(b"authorization", b""))) is not None
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
        ):
            return False
        path, verb = self.url.decode(), method.decode()
        self.scope.update(method=verb, path=path, raw_path=self.url, query_string=b"")
        cast(dict[str, Any], self.scope).update({GRANT: grant, HEADERS: headers})
        self.cycle = _Exchange(self)
        return True

    def on_body(self, body: bytes) -> None:
        self._received = 0
        if not (self._is_refused or self.cycle.response_complete):  # then nobody keeps it
            self._held += len(body)
            self.guard.held += len(body)
            if self.guard.held > MAX_HELD_BYTES:
                self._refuse(503, f"bodies of {MAX_HELD_BYTES} bytes are in work; try again later")
        if self.transport.is_closing():
            return
        if type(self.cycle) is _Exchange:
            self.cycle.parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._received = True, 0
        if self.transport.is_closing():
            return
        if type(cycle := self.cycle) is _Exchange:
            task = self.loop.create_task(self.app.plain(self.scope, cycle.receive, cycle.send))
            self.tasks.add(task)
            task.add_done_callback(cycle.ended)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._release()
        super().on_response_complete()

    def _release(self) -> None:
        self.guard.held -= self._held
        self._held = 0

    def _refuse(self, status: int, why: str) -> None:
        if self.transport.is_closing():
            return
        cycle, is_in_body = self.cycle, not self._in_head and not self.pipeline
        if cycle is None or cycle.response_complete or (is_in_body and not cycle.response_started):
            self.transport.write(b"".join(refused(status, why)))
        self.transport.close()


def _refusing(status: int, why: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        _, body = refused(status, why)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # Who is still sending would lose the answer with the connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})

    return app
