"""``agl runs``: what was run here, two of them side by side, and away with one."""

from pathlib import Path
from typing import Any, get_args

import click

from agl.cli.shared import note, print_json, print_table
from agl.types import RolloutMode
from agl_inspect.figures import rounded
from agl_inspect.report.text import near
from agl_inspect.runs.comparing import MOST_TASKS, OfStep, compared, print_comparison
from agl_inspect.runs.lookup import (
    Where,
    delete_run,
    derived_from,
    find_run,
    folder_of,
    print_run,
    read_store_of,
    runs_of_store,
    when,
)
from agl_learning.reports.run_metrics import RunMetrics
from agl_runs.folders import shown_status
from agl_runs.records import Run
from agl_views.tables.stores import store_options
from agl_views.tables.task_changes import task_changes, task_text

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
    runs = runs_of_store(path, url)
    rows = [_row(run) for run in runs]
    if as_json:
        print_json(rows)
        return
    cells = [[*rounded(row.values())[:-2], near(row["folder"] or "")] for row in rows]
    print_table(COLUMNS, cells, cut=True)
    for run, row in zip(runs, rows, strict=True):
        for said in filter(None, (run.problem, row["unread"])):
            note(f"{run.run_id}: {said}")


def _row(run: Run) -> dict[str, Any]:
    metrics = RunMetrics.of(run)
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
def show(where: Where, run_id: str, as_json: bool) -> None:
    """Show a run: its configuration, code, data and starts.

    RUN is a run's id, a part of it, its folder or its store file.
    """
    run = find_run(run_id, where)
    derived = derived_from(run, runs_of_store(*where))
    if as_json:
        print_json({**run.model_dump(), "status": shown_status(run), "derived": derived})
    else:
        print_run(run, derived)


@command.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@_json
@click.pass_obj
def compare(where: Where, first: str, second: str, as_json: bool) -> None:
    """Compare two runs: options, code, rewards per step, totals, and task by task.

    A and B are runs as for show; RUN@STEP is one step of a run. So agl runs compare 3f2a@0 3f2a@30
    shows which held-out tasks became worse from the first to the last evaluation.
    """
    comparison = compared(_of_step(first, where), _of_step(second, where), where)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison)


def _of_step(name: str, where: Where) -> OfStep:
    run, _, step = name.rpartition("@")
    if run and step.isdigit():
        return find_run(run, where), int(step)
    return find_run(name, where), None


@command.command("tasks")
@click.argument("run_id", metavar="RUN")
@click.option("--mode", type=click.Choice(get_args(RolloutMode)), help="Only tasks of this mode.")
@_json
@click.pass_obj
def tasks(where: Where, run_id: str, mode: str | None, as_json: bool) -> None:
    """List the tasks of a run by how their mean reward changed, the greatest loss first.

    Compared are the first and the last step that ran a task: agl runs compare RUN@10 RUN@30 takes
    two steps that you name.
    """
    run = find_run(run_id, where)
    found = read_store_of(run, where, lambda store: task_changes(store, run.run_id))
    found = [one for one in found if mode in (None, one.mode)]
    if as_json:
        print_json([one.as_json() for one in found])
        return
    rows = [
        [
            task_text(one.mode, one.task),
            *rounded([one.first, one.last, one.difference]),
            f"{one.first_step} to {one.last_step}",
            one.rollouts,
        ]
        for one in found[:MOST_TASKS]
    ]
    print_table(["task", "first", "last", "difference", "steps", "rollouts"], rows, cut=True)
    if len(found) > MOST_TASKS:
        note(f"the first {MOST_TASKS} of {len(found)} tasks; --json has all")
    elif not found:
        note("no task has a reward in two steps")


@command.command("delete")
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--folder", "with_folder", is_flag=True, help="Remove its folder as well.")
@click.option("--force", is_flag=True, help="Also where it may still run on another machine.")
@_json
@click.pass_obj
def delete(
    where: Where,
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
