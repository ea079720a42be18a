"""A store served over HTTP, itself a store."""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agl.env import DEFAULT_HOST, DEFAULT_PORT, LightningEnvVar, resolve_str_env_var
from agl.errors import ConfigError, StoreError
from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.forwarding import ForwardingStore
from agl.utils.catalogue import refuse_keywords
from agl.utils.secrets import learn
from agl_http.addresses import is_loopback
from agl_http.server import ServerThread, address_of, bind
from agl_http.tokens import Tokens, set_tokens, tokens_of, with_token
from agl_http.wire import MAX_BODY_BYTES, TRACES

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agl_server.routes import StoreRoutes


class LightningStoreServer(ForwardingStore):
    """Serves a store over HTTP, from a thread of this process.

    As a store, it hands every call to the store that it wraps. In any other process that gets it,
    by fork or by pickle, it is a ``LightningStoreClient`` of the server.

    Args:
        store: What is served. One that is not thread-safe gets one call at a time.
        host: Where to listen; None for 127.0.0.1. Anything but loopback needs ``token``.
        port: None for 4747; 0 for a free one.
        cors_allow_origins: Origin, or origins, whose web pages may call; ``*`` for all.
        token: Token of role ``admin``, of 16 characters or more. None reads ``AGL_SERVER_TOKEN``;
            without either, one is made that ends with this process. Every request needs a token,
            health checks aside.
        open: Everybody who reaches the server may do everything; on loopback only.
        max_body_bytes: A request with a longer body, unpacked, is refused with 413.
        sock: Listen on this one, bound already (see ``agl_http.server.bind``), so that a port
            can be taken before processes are forked. Excludes ``host`` and ``port``.
        uds: Listen on a Unix socket at this path instead: a file of mode 0600, in a folder to which
            nobody else may write. Its clients are on this machine, and of this library:
            ``http+unix://%2Ftmp%2Fagl.sock``.
        drain_seconds: How long ``stop`` lets requests finish.
        extra_routes: What else is answered at the address, as routes of starlette; the store's own
            paths come first.
        tracker: Where metrics go besides ``/metrics``: a backend of agl-metrics.

    Raises:
        ConfigError: An option cannot be honoured.
    """

    @refuse_keywords("LightningStoreServer")
    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: Sequence[str] | str | None = None,
        tracker: Any = None,
        *,
        token: str | None = None,
        open: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
        sock: socket.socket | None = None,
        uds: str | os.PathLike[str] | None = None,
        drain_seconds: float = 5.0,
        extra_routes: "Sequence[BaseRoute]" = (),
    ) -> None:
        if sum((sock is not None, uds is not None, host is not None or port is not None)) > 1:
            raise ConfigError("LightningStoreServer: give one of sock, uds, and host and port")
        self.host = os.path.abspath(uds) if uds is not None else host or DEFAULT_HOST
        self._port = DEFAULT_PORT if port is None else port
        if sock is not None:
            self.host, self._port = address_of(sock)
        token = resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN, token) or None
        if open and (token is not None or not is_loopback(self.host)):
            raise ConfigError(
                "LightningStoreServer: open=True asks for no token, so it is for loopback and "
                "excludes token= and AGL_SERVER_TOKEN; leave one of them out"
            )
        if token is None and not is_loopback(self.host):
            raise ConfigError(
                f"LightningStoreServer: host {self.host!r} can be reached from other machines, so "
                "a token is needed; set AGL_SERVER_TOKEN to a long random text, pass token=..., or "
                "serve on 127.0.0.1"
            )
        if token is not None:
            set_tokens(store, Tokens(token))
        self._admin = None if open else tokens_of(store).admin
        learn(self._admin)
        is_one = isinstance(cors_allow_origins, str)
        self._origins = [cors_allow_origins] if is_one else cors_allow_origins or ()
        self._max_body_bytes = max_body_bytes
        self._drain_seconds = drain_seconds
        self._sock = sock
        self._tracker, self._extra_routes = tracker, list(extra_routes)
        if tracker is not None:
            store = tracker.watch_store(store)
            self._extra_routes += tracker.routes()
        # Requests are answered in a thread of the server, beside the calls of this process.
        self._store: LightningStore | None = store
        self._owner = os.getpid()
        self._client: LightningStore | None = None
        self._thread: ServerThread | None = None
        self._routes: StoreRoutes | None = None

    @property
    def endpoint(self) -> str:
        """Address of the server for a client on this machine, with the admin's token in it.

        Raises:
            StoreError: The port is a free one that is picked at ``start``, and that is to come.
        """
        return with_token(self.address, self._admin)

    @property
    def address(self) -> str:
        """The same without a token: for a log, or together with ``headers``."""
        thread = self._thread or ServerThread(None, self.host, self._port)
        if not thread.port and not thread.host.startswith("/"):
            raise StoreError("the store server has no address yet; await start() first")
        return thread.url

    @property
    def headers(self) -> dict[str, str]:
        """What a request of any other client must carry: the admin's token, if there is one."""
        return {"Authorization": f"Bearer {self._admin}"} if self._admin else {}

    async def start(self) -> None:
        """Serve; returns when requests are taken. A second call changes nothing.

        Raises:
            ConfigError: The port is in use.
            StoreError: This is not the process that made the server.
        """
        if os.getpid() != self._owner or self._store is None:
            raise StoreError(
                "the store server belongs to another process; here it is a client of it and "
                "cannot be started"
            )
        if self._thread is not None:
            return
        from agl_server.app import store_app
        from agl_server.routes import StoreRoutes

        tokens = None if self._admin is None else tokens_of(self._store)
        routes = StoreRoutes(self._store, tokens)
        if self._tracker is not None:
            routes.requests = self._tracker.watch_requests()
        app = store_app(
            routes,
            tokens,
            cors_allow_origins=self._origins,
            max_body_bytes=self._max_body_bytes,
            extra_routes=self._extra_routes,
        )
        # Started again on the port that it had: clients know that one.
        sock, self._sock = self._sock or bind(self.host, self._port), None
        thread = ServerThread(
            app, self.host, sock=sock, drain_seconds=self._drain_seconds, origins=self._origins
        )
        self._port = await asyncio.to_thread(thread.start)
        self._thread, self._routes = thread, routes

    async def stop(self) -> None:
        """Answer what is in progress, then end; the wrapped store stays open."""
        if os.getpid() != self._owner:
            return
        thread, routes = self._thread, self._routes
        self._thread = self._routes = None
        if thread is not None and routes is not None:
            routes.end_long_polls()
            await asyncio.to_thread(thread.stop)

    @property
    def target(self) -> LightningStore:
        """The store that does the work in this process: the wrapped one, or a client."""
        if os.getpid() == self._owner and self._store is not None:
            return self._store
        if self._client is None:
            from agl_server.client import LightningStoreClient

            self._client = LightningStoreClient(self.endpoint)
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        _ = self.address  # raises where it is not known yet
        return {"host": self.host, "_port": self._port, "_admin": self._admin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._store = self._thread = self._routes = self._client = None
        self._owner = -1

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Everything; ``persistent`` is as of the wrapped store."""
        kept = self.target.capabilities.get("persistent", False)
        said = LightningStoreCapabilities(zero_copy=True, otlp_traces=True, persistent=kept)
        return {**super().capabilities, **said}

    def otlp_traces_endpoint(self) -> str:
        """Address for an OTLP/HTTP exporter, with the admin's token in it."""
        return f"{self.endpoint}{TRACES}"

    async def close(self) -> None:
        await self.stop()
        await self.target.close()
