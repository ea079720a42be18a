"""``agl show``: one rollout as people read it."""

from pathlib import Path

import click

from agl.cli.shared import open_store, print_json, read_and_close, store_options
from agl_learning.showing import as_text, show


@click.command("show")
@click.argument("rollout_id", metavar="ROLLOUT")
@click.option("--attempt", type=click.IntRange(min=1), help="This attempt; default: the last.")
@click.option("--step", type=int, help="As this step of the algorithm saw it; default: the last.")
@click.option("--tokens", is_flag=True, help="Token ids too, with log-probabilities.")
@click.option("--full", is_flag=True, help="Long messages whole.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    rollout_id: str,
    attempt: int | None,
    step: int | None,
    tokens: bool,
    full: bool,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show ROLLOUT: what was said, what became of each answer, its error, its times.

    ROLLOUT is an id from agl rollouts, or its beginning, with or without "ro-".
    """
    store = open_store(path, url)
    shown = read_and_close(store, lambda store: show(store, rollout_id, attempt, step))
    if as_json:
        print_json(shown.as_json())
    else:
        click.echo(as_text(shown, tokens=tokens, full=full))
