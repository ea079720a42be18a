"""``agl replay``: a stored step, trained again."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agl.cli.shared import note, print_json, print_table
from agl.errors import ConfigError
from agl.utils.text import shorten
from agl_inspect.runs.lookup import Where, copy_of_store, file_of, find_run
from agl_learning.trainer.comparison import Replay
from agl_runs.config.file import ConfigFile, check_config, load_config, load_config_of_run
from agl_runs.finding import enter
from agl_runs.folders import CONFIG
from agl_runs.local_runs import folder_here
from agl_runs.records import Run
from agl_runs.replay import replay
from agl_views.tables.stores import store_options

SHOWN = 44
"""Characters of a value in the table; ``--json`` has all."""


@click.command("replay")
@click.argument("run_id", metavar="RUN")
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option("--step", type=click.IntRange(min=1), required=True, help="Which step, from 1.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A configuration file, for a run that has none in its folder.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    run_id: str,
    overrides: tuple[str, ...],
    step: int,
    config: Path | None,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Train a stored step of RUN again, and compare with what came of it then.

    It begins at the newest whole checkpoint before the step and trains up to it, from the rollouts
    that the run had, in their order. The agent is not run, and nothing of the run is changed. A
    deterministic run must be the same bit for bit, any other within a tolerance. The exit code is 1
    where something differs.
    """
    run = find_run(run_id, (path, url))
    folder_here(run)
    path = file_of(run, path).absolute() if url is None else path  # its configuration may move us
    found = _replay(run, (path, url), step, _config_of(run, config, overrides))
    if as_json:
        first = found.first_difference
        print_json({"run": run.run_id, **asdict(found), "first_difference": first and first.what})
    else:
        _print(found)
    click.get_current_context().exit(0 if found.first_difference is None else 1)


def _config_of(run: Run, file: Path | None, overrides: tuple[str, ...]) -> ConfigFile:
    if run.derived_from is not None:
        raise ConfigError(
            f"run {run.run_id!r} trained nothing: it was derived from {run.derived_from.run_id!r}. "
            "Replay a step of that one"
        )
    if file is not None:
        return load_config(file, overrides)
    if not (Path(run.folder or "") / CONFIG).is_file():
        raise ConfigError(
            f"run {run.run_id!r} was begun from Python, so its folder has no {CONFIG} that makes "
            "its algorithm. Call agl_runs.replay.replay(Trainer(...), agent, step) in the"
            " script that began it, or give --config FILE"
        )
    config = load_config_of_run(run, overrides)
    enter(run)
    return config


def _replay(run: Run, where: Where, step: int, config: ConfigFile) -> Replay:
    folder = Path(run.folder or "")
    checked = check_config(config, run_dir=folder)
    built = checked.build("algorithm", "adapter")
    with copy_of_store(run, where) as (store, _):
        trainer = checked.trainer(built, store, strategy="shm", run_dir=folder, hooks=[])
        return replay(trainer, checked.agent, step)


def _print(replay: Replay) -> None:
    verdicts = {True: "same", False: "DIFFERS", None: ""}
    rows = [
        [one.what, _shown(one.before), _shown(one.now), verdicts[one.same]]
        for one in replay.compared
    ]
    print_table(["", "as it was", "as it is now", ""], rows)
    for remark in replay.notes:
        note(remark)
    begun = f"the checkpoint of step {replay.begun_at}" if replay.begun_at else "the beginning"
    how = "bit for bit" if replay.is_exact else f"within {replay.tolerance:g} of each number"
    if not replay.is_exact:
        note(
            "the run was not deterministic: its weights need not be the same, and are not compared"
        )
    first = replay.first_difference
    if first is None:
        click.echo(f"step {replay.step}, trained again from {begun}, is as it was, {how}")
        return
    click.echo(f"step {replay.step}, trained again from {begun}, differs; first in {first.what}")
    if first.where:
        click.echo(f"  {first.where}")


def _shown(value: Any) -> str:
    return "" if value is None else shorten(str(value), SHOWN)
