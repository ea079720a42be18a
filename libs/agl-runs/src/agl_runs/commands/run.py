"""``agl run``: train what a file says, or go on with a run."""

from pathlib import Path

import click

from agl_runs.commands import verbose_option


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Go on with a run (id, a part of it, folder or store file); without RUN, with the newest "
    "that has not come to its end. Without FILE it has the configuration that it had.",
)
@click.option("--force", is_flag=True, help="Go on although options, data or code differ.")
@click.option("--ui", is_flag=True, help="Show it in a browser meanwhile (agl-ui).")
@click.option("--side", is_flag=True, hidden=True)
@verbose_option
def command(
    file: Path | None, overrides: tuple[str, ...], resume: str | None, side: bool, **given: bool
) -> None:
    """Train what FILE says, with files that lie over it and overrides as algorithm.beam_width=4."""
    from agl.errors import RunError, StoreAwayError
    from agl_runs.training import resume_run, run_here, train

    if side:  # agl run has started it for one side of a run, and tells it what
        from agl_runs.apart import read_side

        sided, request, hooks = read_side()
        return run_here(sided, request, dry=False, hooks=hooks)
    # What follows --resume may be FILE, and what stands in its place an override.
    if file is not None and "=" in file.name:
        file, overrides = None, (str(file), *overrides)
    if resume and "=" in resume:
        overrides, resume = (resume, *overrides), ""
    if resume and file is None and resume.endswith((".yaml", ".yml")):
        file, resume = Path(resume), ""
    try:
        if resume is not None:
            return resume_run(file, overrides, resume, **given)
        if file is None:
            raise click.UsageError("Missing argument 'FILE': agl run agl.yaml, or agl run --resume")
        return train(file, overrides, dry=False, **given)
    except StoreAwayError as error:
        raise RunError(str(error)) from error  # it may be back when a cluster starts this again
