"""Two runs, or two steps, side by side: options, code, rewards, totals, and task by task."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from agl.cli.shared import note, print_table
from agl.store.base import LightningStore
from agl_inspect.figures import mean, rounded
from agl_inspect.runs.lookup import Where, read_store_of
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.ledger.documents import each_part
from agl_runs.differences import flat
from agl_runs.records import Run
from agl_runs.result import with_reward
from agl_views.tables.rollout_table import Wanted, listed
from agl_views.tables.task_changes import task_text

OfStep = tuple[Run, int | None]
"""A run, and the one step of it that is meant; None for all."""
MOST_TASKS = 50
"""So many tasks are shown; ``--json`` has all."""


@dataclass
class Held:
    """What the store has of a run."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    rewards: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Task, with its mode -> final rewards of its succeeded rollouts."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Model calls in the ledger by bin; what the run went back behind does not count."""


def compared(first: OfStep, second: OfStep, where: Where) -> dict[str, Any]:
    """What differs between two runs, or steps of them, and how both went; JSON values.

    Tasks are in the order of their difference, the greatest loss first.
    """
    runs = first[0], second[0]
    held = [
        read_store_of(run, where, lambda store, run=run, step=step: _held(store, run, step))
        for run, step in (first, second)
    ]
    metrics = [RunMetrics.of(run) for run in runs]
    both = [
        [task, fmean(held[0].rewards[task]), fmean(held[1].rewards[task])]
        for task in held[0].rewards
        if task in held[1].rewards
    ]
    is_of_steps = first[1] is not None or second[1] is not None
    steps = [] if is_of_steps else sorted({*metrics[0].rewards, *metrics[1].rewards})
    return {
        "runs": [
            run.run_id if step is None else f"{run.run_id}@{step}" for run, step in (first, second)
        ],
        "options": _differing(*map(_about, runs)),
        "code": _differing(*({**run.code.versions, **run.code.origin} for run in runs)),
        "rewards": [[step, *(each.rewards.get(step) for each in metrics)] for step in steps],
        "totals": _side_by_side(*(_totals(each) for each in held)),
        "unread": [each.unread or None for each in metrics],
        "tasks": sorted(both, key=lambda row: row[2] - row[1]),
    }


def print_comparison(found: dict[str, Any]) -> None:
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
        if (reward := (await with_reward(store, rollout)).reward) is not None:
            task = task_text(rollout.mode, rollout.input)
            held.rewards.setdefault(task, []).append(reward)
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
