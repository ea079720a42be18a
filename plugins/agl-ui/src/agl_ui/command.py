"""``agl ui``: a web page over a store."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_http.commands import host_option, port_option

if TYPE_CHECKING:
    from agl_ui.data_sources import DataSources


@click.command("ui")
@click.argument("store", required=False)
@host_option(": a name of loopback.")
@port_option(0)
@click.option("--open", "is_open", is_flag=True, help="Ask for no key in the address.")
@click.option("--browse", is_flag=True, help="Open a browser.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the pages into a new folder, for who has no server, and end.",
)
@click.option(
    "--rollouts",
    "most",
    default=500,
    type=click.IntRange(0),
    help="With --export: so many rollouts get a page.",
)
@click.option(
    "--tokens",
    default=200,
    type=click.IntRange(0),
    help="With --export: of so many trained tokens, why they got what they got.",
)
def command(
    store: str | None,
    host: str,
    port: int,
    is_open: bool,
    browse: bool,
    folder: Path | None,
    most: int,
    tokens: int,
) -> None:
    """Show runs, rollouts, conversations and tokens in a browser.

    STORE is a run (its id, a part of it, or its folder), a folder of runs, a store file, the
    address of a PostgreSQL, or that of a store server, http://HOST:PORT, with a reader's token in
    the environment variable AGL_SERVER_TOKEN: other users of the machine see what stands in a
    command. Without STORE, all runs under agl-runs are shown; with --export the newest is written.
    Nothing is changed, and a run that is under way may be looked at.
    """
    import asyncio

    from agl.errors import ConfigError
    from agl_http.addresses import is_loopback
    from agl_runs.finding import stores_here
    from agl_runs.folders import RUNS, STORE
    from agl_ui.data_sources import DataSources, file_source, server_source
    from agl_ui.serving import serve
    from agl_views.tables.stores import store_file

    if not is_loopback(host):
        raise ConfigError(
            f"agl ui: host {host!r} can be reached from other machines, and nothing is encrypted. "
            "Serve on 127.0.0.1 and come through a tunnel: ssh -L PORT:127.0.0.1:PORT THIS-MACHINE"
        )
    path = Path(store or RUNS)
    if store is None or (path.is_dir() and not stores_here(path)):
        sources = DataSources(folder=path)
        if not sources.all():
            raise ConfigError(
                f"there is no {path}/*/{STORE}. Start a run (agl run agl.yaml), or name a store: "
                "agl ui FILE, agl ui http://HOST:PORT"
            )
    elif "://" in store:
        sources = DataSources(server_source(store))
    else:
        sources = DataSources(file_source(store_file(path).absolute()))
    if folder is not None:
        asyncio.run(_export(sources, folder, most, tokens))
    else:
        asyncio.run(serve(sources, host, port, is_open=is_open, browse=browse))


TELL_SECONDS = 5.0
"""So often an export without a terminal says how far it is."""


async def _export(sources: "DataSources", folder: Path, most: int, tokens: int) -> None:
    from agl.cli.shared import note
    from agl.errors import AglError, ConfigError
    from agl_ui.exporting import ENTRY, Export

    export = Export(await sources.newest(), folder, most, tokens)
    try:
        with click.progressbar(length=1, label="pages", file=sys.stderr) as bar:
            told = time.monotonic()

            def say(done: int, known: int) -> None:
                nonlocal told
                bar.length = known
                bar.update(done - bar.pos)
                if not sys.stderr.isatty() and time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    note(f"{done} pages are written, {known - done} more are known")

            export.say = say
            number = await export.write()
    except OSError as error:
        what = f"--export {str(folder)!r}: cannot be written: {error}"
        raise ConfigError(f"{what}. Name a folder where you may write") from error
    finally:
        await sources.close()
    for kind, more in {
        "rollouts": "rollouts are named and have no page; --rollouts takes more",
        "tokens": "trained tokens have no page that says why; --tokens takes more",
        "others": "other pages are named and left out, as there are so many",
    }.items():
        if export.left_out[kind]:
            note(f"{export.left_out[kind]} {more}")
    note(f"{number} pages; what tasks keep private, and keys, are not in them")
    click.echo(folder / ENTRY)
    if export.failed:
        named = ", ".join(f"{address} ({status})" for address, status in export.failed[:5])
        more = f" and {len(export.failed) - 5} more" if len(export.failed) > 5 else ""
        raise AglError(
            f"--export: {len(export.failed)} pages of {number} could not be written as they are: "
            f"{named}{more}. Each says why in the copy"
        )
