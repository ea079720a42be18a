"""``agl config``: what a file and its overrides come to."""

from pathlib import Path

import click


@click.command("config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--schema", is_flag=True, help="Write the JSON Schema of such files, for editors.")
def command(file: Path | None, overrides: tuple[str, ...], as_json: bool, schema: bool) -> None:
    """Check FILE as agl run does, and print it with defaults; secrets are redacted."""
    from agl.cli.shared import print_json
    from agl_runs.config.file import as_yaml, check_config, load_config
    from agl_runs.training import new_run

    if schema:
        from agl_runs.config.json_schema import json_schema

        print_json(json_schema())
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE': agl config agl.yaml, or --schema")
    loaded = load_config(file, overrides)
    checked = check_config(loaded, run_dir=new_run(loaded.config).folder or Path())
    checked.check_fit()
    if as_json:
        print_json(checked.resolved())
    else:
        print(as_yaml(checked.resolved()), end="")
