"""``agl store``: serve a store until told to stop."""

from typing import TYPE_CHECKING, Any

import click

from agl.env import DEFAULT_HOST, DEFAULT_PORT, LightningEnvVar
from agl_http.commands import make_tracker, tracker_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("store")
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    envvar=LightningEnvVar.AGL_SERVER_HOST.value,
    show_envvar=True,
    help="Where to listen. Anything but loopback needs a token.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    envvar=LightningEnvVar.AGL_SERVER_PORT.value,
    show_envvar=True,
    help="0 takes a free one.",
)
@click.option("--uds", default=None, help="Listen on a Unix socket at this path instead.")
@click.option(
    "--backend",
    default="sqlite",
    show_default=True,
    type=click.Choice(["sqlite", "memory"]),
    help="Where the records live; memory forgets them at the end.",
)
@click.option("--path", default=None, help="File of the sqlite backend. [default: ./agl-store.db]")
@click.option(
    "--token",
    default=None,
    envvar=LightningEnvVar.AGL_SERVER_TOKEN.value,
    show_envvar=True,
    help="Token of an admin, so that it stays the same. The variable does not show in process "
    "lists. Without one, a token is made that ends with the server.",
)
@click.option("--open", is_flag=True, help="Ask for no token; on loopback only.")
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    help="Origin whose web pages may call, or *. May be repeated.",
)
@tracker_option
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="DEBUG logs each request.",
)
def command(
    host: str,
    port: int,
    uds: str | None,
    backend: str,
    path: str | None,
    token: str | None,
    open: bool,
    cors_origins: tuple[str, ...],
    trackers: tuple[str, ...],
    log_level: str,
) -> None:
    """Serve a store over HTTP.

    It prints its address with a token of an admin in it, unless you gave the token; clients use
    that as it is: LightningStoreClient("http://agl:TOKEN@HOST:PORT"). OpenTelemetry exporters use
    http://agl:TOKEN@HOST:PORT/v1/traces. SIGTERM and Ctrl+C let requests in progress finish.
    """
    import asyncio
    import os
    from pathlib import Path

    from agl.utils.logs import setup_logging

    if uds is not None:
        host, port = os.path.abspath(uds), 0
    if path is not None and backend == "memory":
        raise click.UsageError("--path has no meaning with --backend memory; leave one of them out")
    setup_logging(log_level.upper())
    file = None if backend == "memory" else Path(path or "agl-store.db").absolute()
    options = {"token": token, "open": open, "cors_allow_origins": list(cors_origins)}
    options["tracker"] = make_tracker(trackers)
    asyncio.run(_serve(host, port, file, options))


async def _serve(host: str, port: int, file: "Path | None", options: dict[str, Any]) -> None:
    import gc
    from contextlib import closing

    from agl.plugins.hooks import HookCaller, routes_of
    from agl.store.memory import InMemoryLightningStore
    from agl_http.commands import stop_signal
    from agl_http.server import bind
    from agl_server.server import LightningStoreServer
    from agl_sqlite import SqliteLightningStore

    stop = stop_signal()
    # The port first: a server that cannot have it leaves no file behind.
    with closing(bind(host, port)) as sock:
        store = InMemoryLightningStore() if file is None else SqliteLightningStore(str(file))
        server = LightningStoreServer(
            store,
            sock=sock,
            extra_routes=await routes_of(HookCaller(), store),
            **options,
        )
        try:
            await server.start()
            # This process lives long and its records make no cycles: looking for some every few
            # hundred requests took a twelfth of its time.
            gc.freeze()
            gc.set_threshold(100_000, 50, 100)
            address = server.address if options["token"] else server.endpoint
            click.echo(f"agl store: {address} ({file or 'in memory'})", err=True)
            await stop.wait()
            click.echo("agl store: finishing requests", err=True)
        finally:
            await server.close()
