"""``agl runs``: what was run here, two of them side by side, and away with one."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import click

from agl.cli.shared import note, print_json, print_table
from agl.store.base import LightningStore
from agl.types import RolloutMode
from agl_inspect.figures import mean, rounded
from agl_inspect.report.text import near
from agl_inspect.runs.lookup import (
    MOST_TASKS,
    Where,
    delete_run,
    derived_from,
    find_run,
    print_run,
    read_store_of,
    run_row,
    runs_of_store,
)
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.ledger.documents import each_part
from agl_runs.differences import flat
from agl_runs.folders import shown_status
from agl_runs.records import Run
from agl_views.tables.rollout_table import Wanted, listed
from agl_views.tables.stores import store_options
from agl_views.tables.task_changes import task_changes, task_text

COLUMNS = ["run", "algorithm", "state", "starts", "step", "reward", "held-out", "begun", "folder"]
OfStep = tuple[Run, int | None]
"""A run, and the one step of it that is meant; None for all."""
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
    rows = [run_row(run) for run in runs]
    if as_json:
        print_json(rows)
        return
    cells = [[*rounded(row.values())[:-2], near(row["folder"] or "")] for row in rows]
    print_table(COLUMNS, cells, cut=True)
    for run, row in zip(runs, rows, strict=True):
        for said in filter(None, (run.problem, row["unread"])):
            note(f"{run.run_id}: {said}")


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
    of_steps = _of_step(first, where), _of_step(second, where)
    runs = [run for run, _ in of_steps]
    held = [
        read_store_of(run, where, lambda store, run=run, step=step: _held(store, run, step))
        for run, step in of_steps
    ]
    metrics = [RunMetrics.of(run) for run in runs]
    both = [
        [task, fmean(held[0].rewards[task]), fmean(held[1].rewards[task])]
        for task in held[0].rewards
        if task in held[1].rewards
    ]
    is_of_steps = any(step is not None for _, step in of_steps)
    steps = [] if is_of_steps else sorted({*metrics[0].rewards, *metrics[1].rewards})
    comparison = {
        "runs": [run.run_id if step is None else f"{run.run_id}@{step}" for run, step in of_steps],
        "options": _differing(*map(_about, runs)),
        "code": _differing(*({**run.code.versions, **run.code.origin} for run in runs)),
        "rewards": [[step, *(each.rewards.get(step) for each in metrics)] for step in steps],
        "totals": _side_by_side(*(_totals(each) for each in held)),
        "unread": [each.unread or None for each in metrics],
        # The greatest loss first.
        "tasks": sorted(both, key=lambda row: row[2] - row[1]),
    }
    if as_json:
        print_json(comparison)
    else:
        _print_comparison(comparison)


def _of_step(name: str, where: Where) -> OfStep:
    run, _, step = name.rpartition("@")
    if run and step.isdigit():
        return find_run(run, where), int(step)
    return find_run(name, where), None


@dataclass
class Held:
    """What the store has of a run."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    rewards: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Task, with its mode -> final rewards of its succeeded rollouts."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Model calls in the ledger by bin; what the run went back behind does not count."""


def _print_comparison(found: dict[str, Any]) -> None:
    """Write it as tables; those without a row are left out."""
    runs = found["runs"]
    for name, key in (("option", "options"), ("code", "code"), ("totals", "totals")):
        if found[key]:
            rows = [[at, *sides] for at, sides in found[key].items()]
            print_table([name, *runs], map(rounded, rows) if key == "totals" else rows)
        elif key != "totals":
            note(f"{key}: the same")
    if found["rewards"]:
        print_table(["step", *runs], [rounded(row) for row in found["rewards"]])
    for run_id, unread in zip(runs, found["unread"], strict=True):
        if unread:
            note(f"{run_id}: {unread}")
    tasks = found["tasks"]
    if tasks:
        print_table(
            ["task", *runs, "difference"],
            [rounded([*row, row[2] - row[1]]) for row in tasks[:MOST_TASKS]],
        )
    if len(tasks) > MOST_TASKS:
        note(f"{MOST_TASKS} of {len(tasks)} tasks that both ran; --json has all")
    elif not tasks:
        note("no task has a reward in both")


async def _held(store: LightningStore, run: Run, step: int | None) -> Held:
    held = Held()
    rollouts = (await listed(store, Wanted(run=run.run_id, step=step, is_least=True))).rollouts
    for rollout in rollouts:
        held.statuses[rollout.status] += 1
        if rollout.reward is not None:
            task = task_text(rollout.mode, rollout.input)
            held.rewards.setdefault(task, []).append(rollout.reward)
    async for part in each_part(store, run=run.run_id, step=step, lost=False):
        held.calls["trained"] += sum(item.kind == "call" for item in part.trained)
        held.calls.update(each.reason for each in part.excluded if each.kind == "call")
    return held


def _about(run: Run) -> dict[str, Any]:
    data = {f"{name} tasks": each.digest for name, each in run.datasets.items()}
    return {"seed": run.seed, **data, **flat(run.config)}


def _totals(held: Held) -> dict[str, Any]:
    rewards = [reward for each in held.rewards.values() for reward in each]
    return {
        **{f"rollouts {status}": number for status, number in held.statuses.items()},
        "mean reward": mean(rewards),
        **{f"calls {name}": number for name, number in held.calls.items() if number},
    }


def _side_by_side(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [first.get(name), second.get(name)] for name in dict.fromkeys((*first, *second))}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    both = _side_by_side(first, second)
    return {name: sides for name, sides in both.items() if sides[0] != sides[1]}


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
@click.option("--force", is_flag=True, help="Also if it may still run on another machine.")
@_json
@click.pass_obj
def delete(
    where: Where, run_id: str, yes: bool, with_folder: bool, force: bool, as_json: bool
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
