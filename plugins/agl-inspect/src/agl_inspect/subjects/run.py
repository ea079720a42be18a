"""A run as its rollouts: a line per step."""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from agl.cli.shared import table_text
from agl.emitter import find_final_reward
from agl.errors import ConfigError
from agl.runs.folders import shown_status
from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import Rollout, Run

MOST = 2_000
"""Rollouts that are read, the newest of the store."""


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
    newest: list[Rollout] = []
    offset, total = 0, 1
    while offset < min(total, MOST):
        page = await store.query_rollouts(sort_order="desc", limit=PAGE, offset=offset)
        newest += [one for one in page if (one.metadata or {}).get("run") == run_id]
        offset, total = offset + max(len(page), 1), page.total
    lines: dict[tuple[int | None, str | None], StepLine] = {}
    for rollout in reversed(newest):
        step = (rollout.metadata or {}).get("step")
        line = lines.setdefault((step, rollout.mode), StepLine(step, rollout.mode))
        line.rollouts.append(rollout.rollout_id)
        line.failed += rollout.status in ("failed", "cancelled")
        reward = find_final_reward(await store.query_spans(rollout.rollout_id, "latest"))
        line.rewards += [] if reward is None else [reward]
    return ShownRun(run, list(lines.values()), total > MOST)


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
        yield f"rollouts of the newest {MOST} in the store"
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
