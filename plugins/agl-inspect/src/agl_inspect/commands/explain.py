"""``agl explain``: where the advantage of a token comes from."""

from dataclasses import asdict
from pathlib import Path

import click

from agl.cli.shared import open_store, print_json, read_and_close, store_options
from agl_learning.explanation import as_text, explain


@click.command("explain")
@click.argument("rollout_id", metavar="ROLLOUT")
@click.option("--row", type=click.IntRange(min=0), help="Only this row, from 0.")
@click.option(
    "--token", type=click.IntRange(min=0), help="Only this token of the row, from 0; needs --row."
)
@click.option("--step", type=int, help="As this step of the algorithm saw it; default: the last.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    rollout_id: str,
    row: int | None,
    token: int | None,
    step: int | None,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show how ROLLOUT's rewards became advantages: reward, rule, group, advantage.

    What an algorithm did stands in its ledger. Without one, rows and credit are those of the
    adapter 'rows' with its defaults, and there are no advantages.
    """
    if token is not None and row is None:
        raise click.UsageError("--token counts within a row; give --row too")
    store = open_store(path, url)
    chain = read_and_close(store, lambda store: explain(store, rollout_id, step))
    explanation = chain.only(row, token)
    if as_json:
        print_json(asdict(explanation))
    else:
        click.echo(as_text(explanation))
