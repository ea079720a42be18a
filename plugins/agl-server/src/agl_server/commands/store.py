"""``agl store``: serve a store until told to stop."""

import os
from typing import TYPE_CHECKING, Any, cast

import click

from agl.env import DEFAULT_HOST, DEFAULT_PORT, LightningEnvVar
from agl_http.commands import log_level_option, make_tracker, port_option, tracker_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agl.plugins.build import ComponentPlan
    from agl.store.base import LightningStore


@click.group("store", invoke_without_command=True)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    envvar=LightningEnvVar.AGL_SERVER_HOST.value,
    show_envvar=True,
    help="Where to listen. Anything but loopback needs a token.",
)
@port_option(DEFAULT_PORT, envvar=LightningEnvVar.AGL_SERVER_PORT.value, show_envvar=True)
@click.option("--uds", default=None, help="Listen on a Unix socket at this path instead.")
@click.option(
    "--backend",
    default="sqlite",
    help="Where the records live: the name of a store, see agl plugins. memory forgets them at the "
    "end.",
)
@click.option(
    "--path",
    "--store",
    help="File of the store, or postgresql://... for a database; postgres starts one in "
    "./agl-store.postgres. [default: ./agl-store.db]",
)
@click.option(
    "--token",
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
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is of agl store itself; agl store "
                    f"{context.invoked_subcommand} names its stores behind it"
                )
        return
    import asyncio

    from agl.plugins.build import plan_component
    from agl.store.base import LightningStore
    from agl.utils.logs import setup_logging

    if uds is not None:
        host, port = os.path.abspath(uds), 0
    setup_logging(log_level.upper())
    spec: dict[str, Any] = {"type": backend}
    if path is not None:
        spec |= _spec_of("agl store", path, is_new=True)
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
            store, sock=sock, extra_routes=await routes_of(HookCaller(), store), **options
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
    from agl.cli.shared import note, read_and_close
    from agl_sqlite.copying import copy_store

    def progress(table: str, count: int) -> None:
        if count % 50_000 == 0:
            note(f"agl store copy: {count} of {table}")

    async def copy_to(store: "LightningStore") -> dict[str, int]:
        built = cast(Any, plan.build())
        try:
            return await copy_store(cast(Any, store), built, progress)
        finally:
            await built.close()

    for place in (source, target):
        if place.startswith("http"):
            raise click.UsageError(
                f"{place!r} is a server; agl store copy reads and writes the file or the database "
                "itself. Stop the server, and name what is behind it"
            )
    if len({os.path.realpath(place) for place in (source, target)}) == 1:
        raise click.UsageError(f"{source!r} and {target!r} are one store; name another to copy to")
    first = _plan_of("copy", source, read_only=True)
    plan = _plan_of("copy", target, is_new=True)
    counts = read_and_close(first.build(), copy_to)
    click.echo(", ".join(f"{count} {table}" for table, count in counts.items()))


@command.command("prune")
@click.argument("place", metavar="STORE")
@click.option("--keep", required=True, help="Age of what stays: hours, days or weeks, as in 30d.")
@click.option("--dry-run", is_flag=True, help="Say how much would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(place: str, keep: str, dry_run: bool, yes: bool) -> None:
    """Delete rollouts that ended long ago.

    With them go their attempts, their spans, the documents about them, and resources that no other
    rollout uses. What belongs to a run that is running stays; a run that has stopped, and is
    resumed later, collects anew what it needs of them. STORE is the file of a store,
    postgresql://..., the folder of a PostgreSQL that agl started, or the address of a server, which
    goes on meanwhile: the rollouts are deleted in pieces.
    """
    import re
    import time

    from agl.cli.shared import read_and_close
    from agl_runs.pruning import delete_rollouts, find_old

    if not re.fullmatch(r"[0-9]{1,5}[hdw]", keep):
        raise click.BadParameter(f"{keep!r}; expected a number and h, d or w, as in 30d")
    before = time.time() - int(keep[:-1]) * {"h": 3600, "d": 86400, "w": 604800}[keep[-1]]

    async def delete(store: "LightningStore") -> str:
        old, num_used = await find_old(store, before)
        said = _listed(await delete_rollouts(store, old, only_count=True))
        stay = f"; {num_used} rollouts stay, as runs that are running use them" if num_used else ""
        click.echo(f"ended more than {keep} ago: {said}{stay}")
        if dry_run or not old:
            return "nothing was deleted"
        if not yes:
            click.confirm("Delete them?", abort=True, err=True)
            old, _ = await find_old(store, before)  # a run may have been resumed meanwhile
        return f"deleted: {_listed(await delete_rollouts(store, old))}"

    click.echo(read_and_close(_plan_of("prune", place, read_only=dry_run).build(), delete))


def _listed(counts: "Mapping[str, int]") -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing"


def _plan_of(
    verb: str, place: str, *, is_new: bool = False, read_only: bool = False
) -> "ComponentPlan[LightningStore]":
    from agl.plugins.parts import plan_part

    where, spec = f"agl store {verb}", cast(Any, place)
    if "://" not in place:
        spec = {"type": "sqlite", **_spec_of(where, place, is_new=is_new)}
    options: dict[str, Any] = {"scan_interval_seconds": 1e6}  # nobody looks for overdue attempts
    options |= {"read_only": True} if read_only and place.startswith("postgres") else {}
    return plan_part("store", spec, where=where, **options)


def _spec_of(where: str, place: str, *, is_new: bool) -> dict[str, Any]:
    """A store by its place; of a file without its type."""
    from pathlib import Path

    from agl.errors import ConfigError

    if "://" in place:
        return {"type": "postgres", "url": place}
    path = Path("agl-store.postgres" if place == "postgres" else place).absolute()
    if not is_new and not path.exists():
        raise ConfigError(f"{where}: there is no store {place!r}")
    if path.is_dir() and any(path.iterdir()) and not (path / "data/PG_VERSION").exists():
        raise ConfigError(
            f"{where}: {place!r} is a folder, and not that of a PostgreSQL that agl started. "
            "Name the file of a store, or that folder"
        )
    is_postgres = path.is_dir() or path.suffix == ".postgres"
    return {"path": str(path), **({"type": "postgres"} if is_postgres else {})}
