"""``agl token``: make a token of fewer rights than one's own."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agl_http.tokens import Role


@click.command("token")
@click.argument("role", type=click.Choice(["admin", "runner", "reader"]))
@click.option("--url", help="Store server, with which the token is printed as one address.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="How long it is good for.")
def command(role: "Role", url: str | None, hours: float | None) -> None:
    """Make a token of ROLE, by the admin's in AGL_SERVER_TOKEN, and print it."""
    from agl.cli.shared import read_and_close
    from agl.env import LightningEnvVar, resolve_str_env_var
    from agl_http.tokens import Tokens, issue_token, with_token
    from agl_server.client import LightningStoreClient

    seconds = None if hours is None else hours * 3600
    if url is None:  # servers with this admin's token will know it
        admin = resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN, fallback="")
        click.echo(Tokens(admin).issue(role, seconds=seconds))
        return
    client = LightningStoreClient(url, retry_delays=(0.1, 0.5, 1.0))
    token = read_and_close(client, lambda store: issue_token(store, role, seconds=seconds))
    click.echo(with_token(client.server_address, token))
