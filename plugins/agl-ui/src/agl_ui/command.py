"""``agl ui``: a web page over a store."""

from pathlib import Path

import click

from agl.env import DEFAULT_HOST


@click.command("ui")
@click.argument("store", required=False)
@click.option(
    "--host", default=DEFAULT_HOST, show_default=True, help="Where to listen: a name of loopback."
)
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="0, the default, takes a free one."
)
@click.option("--open", "is_open", is_flag=True, help="Ask for no key in the address.")
@click.option("--browse", is_flag=True, help="Open a browser.")
def command(store: str | None, host: str, port: int, is_open: bool, browse: bool) -> None:
    """Show runs, rollouts, conversations and tokens in a browser.

    STORE is a run's folder, a store file, or the address of a store server, with a reader's token
    in it: http://agl:TOKEN@HOST:PORT. Without it, all runs under agl-runs are shown. Nothing is
    changed, and a run that is under way may be looked at.
    """
    import asyncio

    from agl.errors import ConfigError
    from agl.runs.finding import stores_here
    from agl.store.access.tokens import without_token
    from agl.utils.addresses import is_loopback
    from agl_learning.stores import store_file
    from agl_ui.places import Places, file_place, server_place
    from agl_ui.serving import serve

    if not is_loopback(host):
        raise ConfigError(
            f"agl ui: host {host!r} can be reached from other machines, and nothing is encrypted. "
            "Serve on 127.0.0.1 and come through a tunnel: ssh -L PORT:127.0.0.1:PORT THIS-MACHINE"
        )
    if store is None:
        if not stores_here():
            raise ConfigError(
                "there is no agl-runs/*/store.db here. Start a run (agl run agl.yaml), or name a "
                "store: agl ui FILE, agl ui http://HOST:PORT"
            )
        places = Places()
    elif "://" in store:
        places = Places(server_place(store, without_token(store)[0]))
    else:
        places = Places(file_place(store_file(Path(store)).absolute()))
    asyncio.run(serve(places, host, port, is_open=is_open, browse=browse))
