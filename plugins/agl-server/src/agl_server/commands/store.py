"""``agl store``: serve a store until told to stop."""

from typing import TYPE_CHECKING, Any, cast

import click

from agl.env import DEFAULT_HOST, DEFAULT_PORT, LightningEnvVar
from agl_http.commands import log_level_option, make_tracker, port_option, tracker_option

if TYPE_CHECKING:
    from agl.plugins.build import ComponentPlan
    from agl.store.base import LightningStore


@click.group("store", invoke_without_command=True)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    envvar=LightningEnvVar.AGL_SERVER_HOST.value,
    show_envvar=True,
    help="Where to listen. Anything but loopback needs a token.",
)
@port_option(DEFAULT_PORT, envvar=LightningEnvVar.AGL_SERVER_PORT.value, show_envvar=True)
@click.option("--uds", default=None, help="Listen on a Unix socket at this path instead.")
@click.option(
    "--backend",
    default="sqlite",
    show_default=True,
    help="Where the records live: the name of a store, see agl plugins. memory forgets them at the "
    "end.",
)
@click.option(
    "--path",
    "--store",
    default=None,
    help="File of the store, or postgresql://... for a database; postgres starts one in "
    "./agl-store.postgres. [default: ./agl-store.db]",
)
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
@log_level_option
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
    if click.get_current_context().invoked_subcommand is not None:
        return
    import asyncio
    import os

    from agl.plugins.build import plan_component
    from agl.store.base import LightningStore
    from agl.utils.logs import setup_logging

    if uds is not None:
        host, port = os.path.abspath(uds), 0
    setup_logging(log_level.upper())
    spec: dict[str, Any] = {"type": backend}
    if path is not None and "://" in path:
        spec = {"type": "postgres", "url": path}
    elif path == "postgres":
        spec = {"type": path}
    elif path is not None:
        spec["path"] = os.path.abspath(path)
    plan: ComponentPlan[LightningStore] = plan_component(
        spec,
        group="agl.stores",
        expected_type=LightningStore,
        optional_defaults={"path": os.path.abspath("agl-store.db")},
        where="agl store",
    )
    options = {"token": token, "open": open, "cors_allow_origins": list(cors_origins)}
    options["tracker"] = make_tracker(trackers)
    asyncio.run(_serve(host, port, plan, options))


async def _serve(
    host: str, port: int, plan: "ComponentPlan[LightningStore]", options: dict[str, Any]
) -> None:
    import gc
    from contextlib import closing

    from agl.plugins.hooks import HookCaller, routes_of
    from agl_http.commands import stop_signal
    from agl_http.server import bind
    from agl_server.server import LightningStoreServer

    stop = stop_signal()
    # The port first: a server that cannot have it leaves no file behind.
    with closing(bind(host, port)) as sock:
        store = plan.build()
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
            click.echo(f"agl store: {address} ({getattr(store, 'path', 'in memory')})", err=True)
            await stop.wait()
            click.echo("agl store: finishing requests", err=True)
        finally:
            await server.close()


@command.command("copy")
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str) -> None:
    """Copy all of a store into an empty one.

    SOURCE and TARGET are the file of a store, postgresql://..., or the folder of a PostgreSQL that
    agl started. Stop what writes to the source first: what comes later is not copied. All is copied
    in one transaction, so that after a kill the target is as empty as before.
    """
    import asyncio
    from pathlib import Path

    from agl.errors import ConfigError

    if "://" not in source and not Path(source).exists():
        raise ConfigError(f"agl store copy: there is no store {source!r}")
    counts = asyncio.run(_copy(_plan_of(source), _plan_of(target)))
    click.echo(", ".join(f"{count} {table}" for table, count in counts.items()))


def _plan_of(place: str) -> "ComponentPlan[LightningStore]":
    from pathlib import Path

    from agl.plugins.parts import plan_part

    about = {"type": "sqlite", "path": place}
    if "://" in place or Path(place).is_dir() or Path(place).suffix == ".postgres":
        about = {"type": "postgres", "url" if "://" in place else "path": place}
    # Nobody looks for overdue attempts meanwhile.
    return plan_part("store", {**about, "scan_interval_seconds": 1e6}, where="agl store copy")


async def _copy(*plans: "ComponentPlan[LightningStore]") -> dict[str, int]:
    from contextlib import AsyncExitStack

    from agl.cli.shared import note
    from agl_sqlite.copying import copy_store

    def progress(table: str, count: int) -> None:
        if count % 50_000 == 0:
            note(f"agl store copy: {count} of {table}")

    async with AsyncExitStack() as stack:
        source, target = stores = [cast(Any, plan.build()) for plan in plans]
        for store in stores:
            stack.push_async_callback(store.close)
        return await copy_store(source, target, progress)
