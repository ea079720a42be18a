"""``agl run``: train what a file says."""

from pathlib import Path

import click


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(file: Path, overrides: tuple[str, ...]) -> None:
    """Train what FILE says, with overrides such as algorithm.beam_width=4."""
    from agl.cli.training import train

    train(file, overrides, dry=False)
