"""``agl runs``: what was run here, two of them side by side, and away with one."""

from pathlib import Path
from typing import Any

import click

from agl.cli.shared import note, print_json, print_table
from agl.runs.folders import shown_status
from agl.types import Run
from agl_inspect.report.text import near
from agl_inspect.runs.comparing import compared, print_comparison
from agl_inspect.runs.known import (
    delete_run,
    derived_from,
    find_run,
    folder_of,
    known_runs,
    print_run,
    rounded,
    when,
)
from agl_learning.run_metrics import metrics_of
from agl_learning.stores import store_options

COLUMNS = ["run", "algorithm", "state", "starts", "step", "reward", "begun", "folder"]
_json = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


@click.group("runs", invoke_without_command=True)
@store_options
@_json
@click.pass_context
def command(context: click.Context, path: Path | None, url: str | None, as_json: bool) -> None:
    """List runs: of the stores under agl-runs, or of one store."""
    if context.invoked_subcommand is not None:
        context.obj = (path, url)
        return
    runs = known_runs(path, url)
    rows = [_row(run) for run in runs]
    if as_json:
        print_json(rows)
        return
    cells = [[*rounded(row.values())[:-2], near(row["folder"] or "")] for row in rows]
    print_table(COLUMNS, cells, less=["folder", "starts", "begun"], cut=True)
    for run, row in zip(runs, rows, strict=True):
        for said in filter(None, (run.problem, row["unread"])):
            note(f"{run.run_id}: {said}")


def _row(run: Run) -> dict[str, Any]:
    metrics = metrics_of(run)
    return {
        "run": run.run_id,
        "algorithm": run.algorithm,
        "state": shown_status(run),
        "starts": len(run.generations) or None,
        "step": metrics.step,
        "reward": metrics.last_reward,
        "begun": when(run.create_time),
        "folder": folder_of(run),
        "unread": metrics.unread or None,
    }


@command.command("show")
@click.argument("run_id", metavar="RUN")
@_json
@click.pass_obj
def show(where: tuple[Path | None, str | None], run_id: str, as_json: bool) -> None:
    """Show a run: its configuration, code, data and starts. A beginning of its id is enough."""
    run = find_run(run_id, where)
    derived = derived_from(run, known_runs(*where))
    if as_json:
        print_json({**run.model_dump(), "status": shown_status(run), "derived": derived})
    else:
        print_run(run, derived)


@command.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@_json
@click.pass_obj
def compare(where: tuple[Path | None, str | None], first: str, second: str, as_json: bool) -> None:
    """Compare two runs: options, code, rewards per step, totals, and task by task."""
    comparison = compared(find_run(first, where), find_run(second, where), where)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison)


@command.command("delete")
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--folder", "with_folder", is_flag=True, help="Remove its folder as well.")
@click.option("--force", is_flag=True, help="Also where it may still run on another machine.")
@_json
@click.pass_obj
def delete(
    where: tuple[Path | None, str | None],
    run_id: str,
    yes: bool,
    with_folder: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Delete a run with its rollouts, attempts, spans, accounts and resources."""
    run = find_run(run_id, where)
    folder = run.folder if with_folder else None

    def agree(counts: dict[str, int]) -> bool:
        held = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
        also = f" and its folder {folder}" if folder else ""
        return yes or click.confirm(f"Delete run {run.run_id} with {held}{also}?", err=True)

    deleted = delete_run(run, where, agree, with_folder=with_folder, force=force)
    if deleted is None:
        raise click.Abort
    if as_json:
        print_json({"run": run.run_id, **deleted})
    else:
        note(f"run {run.run_id} is deleted")
