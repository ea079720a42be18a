"""An ASGI application served by uvicorn in a thread of this process."""

import contextlib
import errno
import functools
import logging
import os
import socket
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from agl.env import LightningEnvVar, resolve_str_env_var
from agl.errors import ConfigError, StoreError
from agl_http.addresses import is_loopback, url_of

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger("agl.http")


_held: "weakref.WeakSet[Any]" = weakref.WeakSet()


def forget_in_forks(held: Any) -> None:
    """Have ``held.forget()`` called in processes that are forked from this one."""
    _held.add(held)


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def bind(host: str, port: int, *, listen: bool = True) -> socket.socket:
    """Take an address, so that it is ours before anything else is started.

    Args:
        host: Name or IP address, or the path of a Unix socket.
        port: 0 picks a free one.
        listen: False only keeps it, for a process that binds it by its number: as long as the
            socket is open, Linux gives it to nobody who asks for a free one.

    Raises:
        ConfigError: The port is in use, or the host is none of this machine.
    """
    if host.startswith("/"):
        from agl_http.unix import bind_unix

        return bind_unix(host)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot serve on host {host!r}: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # A port whose last connections are still in TIME_WAIT is free for us; one that
            # somebody listens on is not. On Windows the option would allow that, too.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if listen:
            sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            reason = "is in use; stop what listens there, or choose another port (0: a free one)"
        elif error.errno == errno.EACCES:
            reason = "is not allowed to this user; choose a port above 1023 (0: a free one)"
        else:
            reason = f"cannot be bound: {error.strerror}"
        raise ConfigError(f"port {port} on {host} {reason}") from None
    return sock


def address_of(sock: socket.socket) -> tuple[str, int]:
    """Host and port as ``bind`` takes them."""
    name: Any = sock.getsockname()
    return (name, 0) if isinstance(name, str) else name[:2]


class ServerThread:
    """Serves one application until it is told to stop.

    Uvicorn runs with httptools, and with uvloop where that exists, in a daemon thread with an
    event loop of its own. A process forked while the server runs does not keep its port or its
    connections open.

    Args:
        app: An ASGI application.
        host: Where to listen; the path of a Unix socket begins with a slash.
        port: 0 picks a free port; ``start`` returns it.
        sock: Already bound (see ``bind``); the address is then taken from it, and ``host`` is the
            name by which clients may call it.
        more: Others that listen, and are served as well.
        drain_seconds: How long ``stop`` lets requests finish before it cancels them.
        origins: Of web pages of other sites that may call; ``*`` for all. On loopback, only names
            of this machine, and those in ``AGL_ALLOWED_HOSTS``, are taken for the server's own.
    """

    def __init__(
        self,
        app: Any,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        more: Sequence[socket.socket] = (),
        drain_seconds: float = 5.0,
        origins: Collection[str] = (),
    ) -> None:
        self.app, self.origins, self._more = app, origins, more
        self.host, self.port = address_of(sock) if sock else (host, port)
        self.drain_seconds = drain_seconds
        self._sock, self._name = sock, host
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Address for a client on this machine; a wildcard host becomes loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return url_of(host, self.port)

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> int:
        """Serve; returns the port when requests are taken. A second call changes nothing.

        Raises:
            ConfigError: The port is in use, or the host is none of this machine.
            StoreError: The application did not start; the cause is chained.
        """
        if self.running:
            return self.port
        import uvicorn

        from agl_http.guard import Guard, GuardedProtocol, name_of

        # Who serves others is called by names that we cannot know, and asks for a token as a rule.
        named = resolve_str_env_var(LightningEnvVar.AGL_ALLOWED_HOSTS, fallback="") or ""
        # On Debian a machine's own name is an address of loopback.
        given = [*named.split(","), socket.gethostname(), self._name]
        names = {name_of(name) for name in given} - {""}
        # No page reaches a Unix socket.
        is_held = is_loopback(self.host) and not self.host.startswith("/") and "*" not in names
        guard = Guard(names if is_held else None, self.origins)

        sock = self._sock or bind(self.host, self.port)
        self._sock = sock
        self.port = address_of(sock)[1]
        ready = threading.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                ready.set()

        server = Server(
            uvicorn.Config(
                self.app,
                http=cast(Any, functools.partial(GuardedProtocol, guard=guard)),
                loop="uvloop" if os.name == "posix" else "asyncio",
                ws="none",
                lifespan="auto",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_config=None,
                log_level="warning",
                # uvicorn takes whole seconds only in its annotation.
                timeout_graceful_shutdown=cast(int, self.drain_seconds),
                timeout_keep_alive=75,
            )
        )

        def serve() -> None:
            try:
                server.run(sockets=[sock, *self._more])
            except BaseException as error:
                self._failure = error
            finally:
                sock.close()
                ready.set()

        self._failure = None
        self._server = server
        self._thread = threading.Thread(target=serve, name=f"agl-server-{self.port}", daemon=True)
        forget_in_forks(self)
        self._thread.start()
        ready.wait()
        if not server.started:
            self._thread.join()
            self._thread, self._sock = None, None
            raise StoreError(
                f"the server at {self.url} did not start: {self._failure or 'see the log'}"
            ) from self._failure
        logger.debug("serving on %s", self.url)
        return self.port

    def stop(self) -> None:
        """Take no more requests, let those in progress finish, and end. Safe to call twice."""
        thread, server = self._thread, self._server
        if thread is None or server is None:
            return
        server.should_exit = True
        thread.join()
        self._thread = self._server = self._sock = None

    def forget(self) -> None:
        """Let go of the parent's sockets; called by itself in a forked child.

        A child that kept them would hold the port after the parent's death, and the peers of the
        parent's connections would never learn that it is gone. The numbers are pointed at
        /dev/null instead of being closed, so that objects which still know them cannot close a
        file that the child opens later.
        """
        server, sock = self._server, self._sock
        numbers = [sock.fileno()] if sock else []
        for connection in list(server.server_state.connections) if server else ():
            transport = getattr(connection, "transport", None)
            inner = transport and transport.get_extra_info("socket")
            numbers += [inner.fileno()] if inner else []
        null = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.dup2(null, number, inheritable=False)
        os.close(null)
        self._thread = self._server = self._sock = None
