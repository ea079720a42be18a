"""``agl token``: make a token of fewer rights than one's own."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agl_http.tokens import Role


@click.command("token")
@click.argument("role", type=click.Choice(["admin", "runner", "reader"]))
@click.option("--url", required=True, help="Store server; an admin's token is in AGL_SERVER_TOKEN.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="How long it is good for.")
def command(role: "Role", url: str, hours: float | None) -> None:
    """Make a token of ROLE, and print the address with it."""
    from agl.cli.shared import read_and_close
    from agl_http.tokens import issue_token, with_token
    from agl_server.client import LightningStoreClient

    client = LightningStoreClient(url, retry_delays=(0.1, 0.5, 1.0))
    seconds = None if hours is None else hours * 3600
    token = read_and_close(client, lambda store: issue_token(store, role, seconds=seconds))
    click.echo(with_token(client.server_address, token))
