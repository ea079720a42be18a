"""A run as its rollouts: a line per step."""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from agl.cli.shared import table_text
from agl.emitter import find_final_reward
from agl.errors import ConfigError
from agl.runs.folders import shown_status
from agl.semconv import AGL_ANNOTATION
from agl.store.base import LightningStore
from agl.types import Run
from agl_learning.listing import Wanted, listed

MOST = 500
"""Rollouts that are read, the newest of the run."""


@dataclass
class StepLine:
    """Rollouts of one step and mode."""

    step: int | None
    mode: str | None
    rollouts: list[str] = field(default_factory=list[str])
    failed: int = 0
    rewards: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class ShownRun:
    """What is shown of a run."""

    run: Run
    steps: list[StepLine]
    is_cut: bool
    """Whether earlier rollouts were left out."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run": self.run.model_dump(mode="json"),
            "steps": [asdict(step) for step in self.steps],
            "earlier_left_out": self.is_cut,
        }


async def show_run(store: LightningStore, run_id: str) -> ShownRun:
    """Read the newest rollouts of a run.

    Raises:
        ConfigError: There is no such run.
    """
    run = await store.get_run_by_id(run_id)
    if run is None:
        raise ConfigError(f"the store has no run {run_id!r}. See: agl runs")
    newest = await listed(store, Wanted(run=run_id, most=MOST))
    lines: dict[tuple[int | None, str | None], StepLine] = {}
    for rollout in newest.rollouts:
        step = (rollout.metadata or {}).get("step")
        line = lines.setdefault((step, rollout.mode), StepLine(step, rollout.mode))
        line.rollouts.append(rollout.rollout_id)
        line.failed += rollout.status in ("failed", "cancelled")
        reward = await _reward(store, rollout.rollout_id)
        line.rewards += [] if reward is None else [reward]
    is_cut = newest.total is None or newest.total > len(newest.rollouts)
    return ShownRun(run, list(lines.values()), is_cut)


async def _reward(store: LightningStore, rollout_id: str) -> float | None:
    """The final reward: nearly always an annotation; else whatever span has one."""
    for name in (AGL_ANNOTATION, None):
        spans = await store.query_spans(rollout_id, "latest", name=name)
        reward = find_final_reward(spans)
        if reward is not None:
            return reward
    return None


def run_text(shown: ShownRun) -> str:
    """Lines for people."""
    return "\n".join(_lines(shown))


def _lines(shown: ShownRun) -> Iterator[str]:
    run = shown.run
    yield f"run      {run.run_id}: {run.algorithm}, {shown_status(run)}"
    if run.folder:
        yield f"folder   {run.folder}"
    if run.problem:
        yield f"problem  {run.problem}"
    if shown.is_cut:
        yield f"rollouts the newest {MOST} of the run; agl rollouts --step shows earlier ones"
    yield ""
    columns = ["step", "mode", "rollouts", "failed", "reward", "lowest", "highest", "first rollout"]
    rows = [
        [
            "" if line.step is None else line.step,
            line.mode or "",
            len(line.rollouts),
            line.failed or "",
            *(
                f"{of(line.rewards):.4g}" if line.rewards else ""
                for of in (statistics.fmean, min, max)
            ),
            line.rollouts[0],
        ]
        for line in shown.steps
    ]
    yield table_text(columns, rows)
    yield "options, code and starts: agl runs show " + run.run_id
