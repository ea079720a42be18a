"""All runs, and several of them laid over each other."""

from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from agl.errors import AglError, ConfigError
from agl_learning.reports.run_metrics import RunMetrics
from agl_runs.differences import flat
from agl_runs.folders import shown_status
from agl_runs.records import Run
from agl_ui.charts import Chart, chart
from agl_ui.counts import Mean, mean_reward
from agl_ui.data_sources import DataSource, DataSources
from agl_ui.pages.page import Page, steps_of

MOST_OVERLAID = 8
"""Curves that can be told apart."""


@dataclass(frozen=True)
class Row:
    """A run in the list."""

    source: DataSource
    run: Run
    status: str
    metrics: RunMetrics
    mean: Mean | None
    """Of its rollouts, where it has no curve."""
    spark: Chart | None

    @property
    def reward(self) -> float | None:
        """Of the last step; the mean of all where there is neither step nor evaluation."""
        return self.metrics.last_rewards[0] if self.mean is None else self.mean.reward


async def rows(sources: DataSources) -> tuple[list[Row], list[tuple[DataSource, str]]]:
    """All runs, the newest first; and stores that cannot be read, or that know of no run."""
    found: list[Row] = []
    others: list[tuple[DataSource, str]] = []
    for source in sources.all():
        try:
            runs = await source.runs()
        except AglError as error:
            others.append((source, str(error)))
            continue
        if not runs:
            others.append((source, ""))
        for run in runs:
            metrics = await run_in_threadpool(RunMetrics.of, run)
            has_curve = metrics.rewards or metrics.val_rewards
            is_only = len(runs) == 1
            mean = None if has_curve else await mean_reward(source, run.run_id, is_only)
            series = [("held-out", "val", metrics.val_rewards), ("train", "train", metrics.rewards)]
            spark = chart("reward", series, width=200.0, height=66.0)
            found.append(Row(source, run, shown_status(run), metrics, mean, spark))
    found.sort(key=lambda row: row.run.create_time, reverse=True)
    return found, others


async def write(request: Request, sources: DataSources) -> Page:
    """The list."""
    state = await sources.state()
    found, others = await rows(sources)
    return Page("runs.html", {"title": "Runs", "rows": found, "others": others}, state=state)


async def compare(request: Request, sources: DataSources) -> Page:
    """Those that ``run`` names, as ``STORE/RUN``."""
    wanted = dict.fromkeys(request.query_params.getlist("run"))
    state = await sources.state()
    found, _ = await rows(sources)
    known = {f"{row.source.key}/{row.run.run_id}": row for row in found}
    for name in wanted:
        if name not in known:
            raise ConfigError(f"run={name[:100]!r}: there is no such run here")
    all_chosen = [row for name, row in known.items() if name in wanted]
    chosen, left_out = all_chosen[:MOST_OVERLAID], all_chosen[MOST_OVERLAID:]
    train = [(r.run.run_id, f"line{n}", r.metrics.rewards) for n, r in enumerate(chosen)]
    val = [(r.run.run_id, f"line{n}", r.metrics.val_rewards) for n, r in enumerate(chosen)]
    steps = steps_of(request)
    curves = (("Mean reward per step", train), ("Held-out reward", val))
    charts = [chart(title, series, steps=steps) for title, series in curves]
    given = [row.run for row in chosen]
    flats = [{"algorithm": run.algorithm, "seed": run.seed, **flat(run.config)} for run in given]
    names = dict.fromkeys(name for one in flats for name in one)
    table = [(name, [one.get(name) for one in flats]) for name in names]
    # Those that are not the same in all.
    options = [(name, sides) for name, sides in table if any(one != sides[0] for one in sides)]
    values: dict[str, Any] = {
        "title": "Runs compared",
        "rows": chosen,
        "options": options,
        "left_out": left_out,
        "chosen": [name for name in known if name in wanted],
        "steps": steps,
    }
    values["charts"] = [one for one in charts if one]
    return Page("compare.html", values, state=state)
