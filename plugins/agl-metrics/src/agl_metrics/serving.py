"""The server of ``agl prometheus``."""

import logging

import aiohttp
import click

from agl.errors import MissingPluginError, install_line
from agl_http.commands import stop_signal
from agl_http.layers import JSON, ROUTE, Authenticated, ErrorGuard, Receive, Scope, Send, send_whole
from agl_http.metrics import CONTENT_TYPE
from agl_http.server import ServerThread, bind
from agl_http.tokens import Grant, Tokens, token_in, without_token
from agl_metrics.shared_folder import registry_of_all

logger = logging.getLogger("agl.metrics")

SCRAPE_SECONDS = 8.0
"""How long a store may take; Prometheus waits 10 seconds unless told otherwise."""


class Exporter:
    """Answers ``path`` with metrics, and ``/health``.

    Args:
        path: Where the metrics are.
        folder: Where processes keep theirs; None for none.
        store_url: A store server whose ``/metrics`` are shown, with its token; None for none.

    Raises:
        MissingPluginError: There is a folder, and prometheus_client is not installed.
    """

    def __init__(self, path: str, folder: str | None, store_url: str | None) -> None:
        self.path, self._folder = path, folder
        self._store, self._token = without_token(store_url or "")
        if folder is not None:
            try:
                registry_of_all(folder)
            except ModuleNotFoundError:
                how = install_line("agl-metrics[prometheus]")
                raise MissingPluginError(
                    f"agl prometheus needs prometheus_client, which is not installed. Run: {how}"
                ) from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            await send_whole(send, 200, b'{"status":"ok"}', JSON)
        elif scope["path"].rstrip("/") == self.path:
            scope[ROUTE] = self.path
            await send_whole(send, 200, await self.exposition(), CONTENT_TYPE.encode())
        else:
            text = f"the metrics are at {self.path}\n"
            await send_whole(send, 404, text.encode(), b"text/plain")

    async def exposition(self) -> bytes:
        """The metrics of all processes, and of the store, in the text format 0.0.4."""
        parts: list[bytes] = []
        if self._folder is not None:
            from prometheus_client import generate_latest

            parts.append(generate_latest(registry_of_all(self._folder)))
        if self._store:
            parts += await self._of_store()
        return b"".join(parts)

    async def _of_store(self) -> list[bytes]:
        """The store's own; where it does not answer, only that it does not."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        text, why = b"", ""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SCRAPE_SECONDS)) as http,
                http.get(f"{self._store.rstrip('/')}/metrics", headers=headers) as response,
            ):
                body = await response.read()
                if response.status == 200:
                    text = body
                else:
                    why = f"status {response.status}: {body[:300].decode(errors='replace')}"
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            logger.warning("store %s: no metrics: %s", self._store, why)
        up = (
            "# HELP agl_store_up Whether the store server shows its metrics.\n"
            f"# TYPE agl_store_up gauge\nagl_store_up {0 if why else 1}\n"
        )
        return [text, up.encode()]


async def serve(
    exporter: Exporter, host: str, port: int, token: str | None, access_log: bool
) -> None:
    """Serve until told to stop."""
    tokens = None if token is None else Tokens(token)

    def grant_of(authorization: bytes) -> Grant | None:
        grant = None if tokens is None else tokens.read(token_in(authorization))
        return grant if grant is not None and grant.role in ("admin", "reader") else None

    def observe(method: str, route: str, status: int, seconds: float) -> None:
        if access_log:
            logger.info("%s %s %d %.1f ms", method, route, status, seconds * 1000)

    stop = stop_signal()
    app = Authenticated(exporter, grant_of, frozenset({"/health"})) if tokens else exporter
    server = ServerThread(ErrorGuard(app, observe), host, sock=bind(host, port))
    server.start()
    click.echo(f"agl prometheus: {server.url}{exporter.path}", err=True)
    try:
        await stop.wait()
    finally:
        server.stop()
