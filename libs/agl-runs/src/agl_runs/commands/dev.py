"""``agl dev``: the whole loop with a quick algorithm that learns nothing."""

from pathlib import Path

import click

from agl_runs.commands import verbose_option


@click.command("dev")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@verbose_option
def command(file: Path, overrides: tuple[str, ...]) -> None:
    """Dry-run what FILE says: every task once, with Baseline in the algorithm's place."""
    from agl_runs.training import train

    train(file, overrides, dry=True)
