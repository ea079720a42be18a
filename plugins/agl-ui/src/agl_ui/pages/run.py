"""One run: whether it learns, what was trained, and why the rest failed."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse

from agl.algorithm.run_result import FailureCause
from agl.errors import ConfigError
from agl.types import AttemptedRollout
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.ledger.tables import Sums
from agl_records.types import EXCLUSION_REASONS
from agl_runs.differences import flat
from agl_runs.folders import shown_status
from agl_runs.user_code import place_of
from agl_ui.accounts import BARS, accounts_of
from agl_ui.charts import Chart, Part, Steps, chart, finite, shares
from agl_ui.counts import counts_of, mean_reward
from agl_ui.data_sources import DataSource
from agl_ui.pages.page import Page, steps_of
from agl_views.tables.task_changes import TaskChange, task_changes

COLOURS = 6
"""Reasons that have one of their own in the ledger's bars; the others share one, and their name."""
MOST_TASKS = 200
"""Tasks that are shown, those whose rewards changed most."""
FAILED_LOOKED_AT = 300
"""Rollouts, the newest that failed, whose causes are counted."""


SPENT = {"Calls in steps": ("calls/total",), "Tokens in steps": ("tokens/given", "tokens/sampled")}
"""What agents took -> the metrics that say how much, of steps and evaluations that have ended."""
BUDGET = "gateway.run_budget."
"""Where a file says what the gateway forwards at most."""


@dataclass
class Bar:
    """What became of the calls of one step."""

    step: int | None
    mode: str
    rollouts: int
    left_out: str
    """Why rollouts were not trained, those without a call too."""
    calls: int
    trained: int
    parts: list[Part]


async def overview(request: Request, source: DataSource) -> RedirectResponse:
    """The newest run of a store, or its rollouts where it knows of no run."""
    runs = await source.runs()
    root = request.scope.get("root_path", "").rstrip("/")
    target = f"run/{quote(runs[0].run_id, safe='')}" if runs else "rollouts"
    return RedirectResponse(f"{root}/s/{quote(source.key, safe='')}/{target}", 303)


async def write(request: Request, source: DataSource) -> Page:
    """One run."""
    state = await source.state()
    runs = await source.runs()
    run_id, steps = request.path_params["run_id"], steps_of(request)
    run = next((one for one in runs if one.run_id == run_id), None)
    if run is None:
        raise ConfigError(f"the store {source.title} has no run {run_id!r}")
    metrics = await run_in_threadpool(RunMetrics.of, run)
    counts, causes, accounts = await asyncio.gather(
        counts_of(source), _causes(source), accounts_of(source, run_id, metrics.step)
    )
    curve = chart(
        "Mean reward per step",
        [("held-out", "val", metrics.val_rewards), ("train", "train", metrics.rewards)],
        steps=steps,
    )
    if curve is None:
        credit = [("train", "train", accounts.rewards(run_id))]
        curve = chart("Mean credit per step", credit, steps=steps)
    has_curve = bool(metrics.rewards or metrics.val_rewards)
    mean = None if has_curve else await mean_reward(source, run_id, len(runs) == 1)
    bars, kinds = _bars(accounts.steps, run_id)
    small, constant = _small(metrics, steps)
    values: dict[str, Any] = {
        "title": f"Run {run.run_id}",
        "run": run,
        "runs": runs,
        "of_store": f", all {len(runs)} runs of the store" if len(runs) > 1 else "",
        "status": shown_status(run),
        "metrics": metrics,
        "curve": curve,
        "mean": mean,
        "no_curve": _no_curve(run.algorithm, shown_status(run), metrics.step, bool(accounts.steps)),
        "change": _change(metrics.val_rewards) or _change(metrics.rewards),
        "is_held_out": len(metrics.val_rewards) > (1 if metrics.rewards else 0),
        "steps": steps,
        "small": small,
        "constant": constant,
        # What judges and the algorithm itself ask is not in it.
        "spent": {title: n for title, of in SPENT.items() if (n := metrics.total(*of)) is not None},
        "budget": {
            name.removeprefix(BUDGET): limit
            for name, limit in flat(run.config).items()
            if name.startswith(BUDGET) and finite(limit) is not None
        },
        "rate": _rate(metrics.lines),
        "counts": counts,
        "count_parts": shares(counts, {name: name for name in counts}),
        "causes": causes,
        "num_looked_at": FAILED_LOOKED_AT,
        "bars": bars,
        "most_bars": BARS,
        "kinds": kinds,
        "reasons": EXCLUSION_REASONS,
        "accounts": accounts,
    }
    return Page("run.html", values, source, "run", state=state)


async def tasks(request: Request, source: DataSource) -> Page:
    """How the rewards of each task of a run changed."""
    run_id = request.path_params["run_id"]
    found = await task_changes(source.store, run_id)
    most = most_changed(found)
    values: dict[str, Any] = {
        "title": f"Tasks of {run_id}",
        "run_id": run_id,
        "changes": most,
        "num_more": len(found) - len(most),
    }
    return Page("tasks.html", values, source, "run")


def most_changed(changes: Sequence[TaskChange]) -> list[TaskChange]:
    """Those that are shown, in the order in which they came."""
    most = sorted(changes, key=lambda one: -abs(one.difference))[:MOST_TASKS]
    ids = {one.rollout_id for one in most}
    return [one for one in changes if one.rollout_id in ids]


async def _causes(source: DataSource) -> list[FailureCause]:
    """Failures of the newest rollouts that failed, the most frequent first."""
    found = await source.store.query_rollouts(
        status_in=["failed"], sort_order="desc", limit=FAILED_LOOKED_AT
    )
    causes: dict[tuple[str, str, str], FailureCause] = {}
    for attempt in (one.attempt for one in found if isinstance(one, AttemptedRollout)):
        key, message = ("?", "no reason was recorded", ""), f"the attempt ended as {attempt.status}"
        if (error := attempt.error) is not None:
            key = error.boundary, error.type, place_of(error.traceback)
            message = error.message
        known = causes.get(key, FailureCause(*key, 0, message, attempt.rollout_id))
        causes[key] = replace(known, number=known.number + 1)
    return sorted(causes.values(), key=lambda cause: -cause.number)


def _no_curve(algorithm: str, status: str, step: int | None, is_accounted: bool) -> str:
    """Why nothing is drawn of a run's rewards."""
    if step is not None:
        return (
            f"No curve: there are metrics up to step {step}, and no mean reward in any. No rollout "
            "had a reward that counts, or its algorithm writes none."
        )
    if is_accounted:
        return "No curve: rollouts are accounted for, and none of them had a reward that counts."
    if status == "running":
        return f"No step has ended yet. If {algorithm} has steps, the curve begins with the first."
    if status == "finished":
        return f"No curve: {algorithm} has come to its end and writes no steps."
    return f"No curve: the run ended before its first step did; its state is {status}."


def _change(rewards: dict[int, float | None]) -> tuple[float, float] | None:
    """First and last value of a curve."""
    known = [value for value in rewards.values() if value is not None]
    return (known[0], known[-1]) if len(known) > 1 else None


def _small(
    metrics: RunMetrics, steps: Steps
) -> tuple[list[tuple[Chart, float]], list[tuple[str, float]]]:
    """The other metrics, each small, with its last value; and those that never changed."""
    found: list[tuple[Chart, float]] = []
    constant: list[tuple[str, float]] = []
    for name, title in metrics.drawn():
        points = metrics.series[name]
        if name.endswith("kl") and not any(points.values()):
            continue  # without a reference it is 0, and not measured
        drawn = chart(title, [(title, "train", points)], width=240.0, height=110.0, steps=steps)
        if len(points) > 1 and len({*points.values()}) == 1:
            constant.append((title, next(iter(points.values()))))
        elif drawn is not None and len(points) > 1:
            found.append((drawn, list(points.values())[-1]))
    return found, constant


def _rate(lines: list[dict[str, Any]]) -> float | None:
    """Rollouts per second of the last step that says so."""
    for line in reversed(lines):
        seconds, number = line.get("time/step"), line.get("rollouts/succeeded")
        if seconds and number is not None:
            return (number + line.get("rollouts/failed", 0)) / seconds
    return None


def _bars(steps: Mapping[Any, Sums], run_id: str) -> tuple[list[Bar], dict[str, str]]:
    """What became of calls per step, and the colour of each bin."""
    found = [(key, sums) for key, sums in steps.items() if key[0] in (run_id, "")]
    chosen = sorted(found, key=lambda one: -1 if one[0][2] is None else one[0][2])[-BARS:]
    whole = max((sums["calls", "total"] for _, sums in chosen), default=0)
    names = sum((sums.excluded("calls") for _, sums in chosen), Counter[str]())
    ranked = [name for name, _ in names.most_common()]
    own, others = ranked[:COLOURS], ranked[COLOURS:]
    kinds = {"trained": "trained", **{name: f"why{n}" for n, name in enumerate(own)}}
    rest = f"others: {', '.join(others)}"
    if others:
        kinds[rest] = f"why{COLOURS}"
    bars: list[Bar] = []
    for (_, _, step, mode), sums in chosen:
        total, trained = sums["calls", "total"], sums["calls", "trained"]
        of = sums.excluded("calls")
        why = {reason: of[reason] for reason in own} | {rest: sum(of[one] for one in others)}
        parts = shares({"trained": trained, **why}, kinds, whole)
        left_out = sums.reasons("rollouts")
        bars.append(Bar(step, mode, sums["rollouts", "total"], left_out, total, trained, parts))
    return bars, kinds
