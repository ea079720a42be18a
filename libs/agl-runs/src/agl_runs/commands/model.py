"""``agl model``: what packages can do with a model, each with a subcommand of its own."""

from importlib.metadata import entry_points

import click

SUBCOMMANDS = "agl_runs.model_commands"
"""The entry point group."""


class _Subcommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry_points(group=SUBCOMMANDS).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from agl.errors import install_line
        from agl.utils.catalogue import offered

        for found in entry_points(group=SUBCOMMANDS, name=cmd_name):
            return found.load()
        if package := offered(SUBCOMMANDS).get(cmd_name):
            how = install_line(package)
            raise click.UsageError(f"agl model {cmd_name} is not installed. Run: {how}")
        return None


@click.group("model", cls=_Subcommands)
def command() -> None:
    """Fetch a pretrained model, or a checkpoint of a training server."""
