"""How far a run is, and how its rewards went, from what its algorithm wrote into its folder."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agl.algorithm.run_result import RunResult
from agl_learning.reports.json_lines import JsonLines, is_number, read_json_lines
from agl_runs.records import Run
from agl_runs.result import known_of

METRICS: Final = "metrics.jsonl"
"""A JSON object per step or evaluation, each with ``step``."""
ENGINE: Final = "train/engine"
"""Text: the trainer of a version of fine-tuning, and its version."""
MetricLine = dict[str, Any]
"""``step``, a whole number, and finite numbers by name."""


@dataclass
class RunMetrics:
    """What the metrics of a run say."""

    step: int | None = None
    """The last one."""
    rewards: dict[int, float | None] = field(default_factory=dict[int, float | None])
    """Step -> mean reward; None where no rollout of it has one."""
    val_rewards: dict[int, float | None] = field(default_factory=dict[int, float | None])
    """The same of evaluations."""
    unread: str = ""
    """What of the file cannot be read, and is left out; "" where all was read."""

    @property
    def last_reward(self) -> float | None:
        """Of the last step that has one, else of the last evaluation that has one."""
        for rewards in (self.rewards, self.val_rewards):
            known = [reward for reward in rewards.values() if reward is not None]
            if known:
                return known[-1]
        return None


def metrics_of(run: Run) -> RunMetrics:
    """Read what is in a run's folder; nothing where that is not here."""
    folder = Path(run.folder) if run.folder else None
    lines, unread = ([], "") if folder is None else metric_lines(folder)
    said = known_of(run.run_id, folder, run)
    steps = [line["step"] for line in lines]
    step = max(steps) if steps else None
    return RunMetrics(step, rewards_of(said, lines), val_rewards_of(said, lines), unread)


def rewards_of(said: RunResult, lines: Iterable[MetricLine]) -> dict[int, float | None]:
    """Step -> mean reward in training, by what the run says at its end and by its metrics."""
    found = {step: _known(reward) for step, reward in enumerate(said.steps, 1)}
    found |= {line["step"]: line["reward/mean"] for line in lines if "reward/mean" in line}
    return dict(sorted(found.items()))


def val_rewards_of(said: RunResult, lines: Iterable[MetricLine]) -> dict[int, float | None]:
    """The same of evaluations; step 0 is before training."""
    found = {step: _known(reward) for step, reward in said.held_out if is_number(step)}
    for line in lines:
        if "val/reward/mean" in line:
            found[line["step"]] = line["val/reward/mean"]
        if "val/reward/seed" in line:  # a comparison of prompts measures both at its end
            found[0] = line["val/reward/seed"]
    return dict(sorted(found.items()))


def _known(reward: object) -> float | None:
    """A number; others write into a run's folder, too."""
    return float(reward) if isinstance(reward, int | float) and is_number(reward) else None


def lines_of(run: Run) -> list[MetricLine]:
    """The lines of a run's metrics, one per step or evaluation; none where they are not here."""
    return metric_lines(Path(run.folder))[0] if run.folder else []


def metric_lines(folder: Path) -> tuple[list[MetricLine], str]:
    """The lines of the metrics in a run's folder, and what was left out of them, in words."""
    read = read_json_lines(folder / METRICS)
    return [line for at in read.objects if (line := _numbers(read, *at)) is not None], read.unread


def _numbers(read: JsonLines, number: int, values: dict[str, Any]) -> MetricLine | None:
    step: Any = values.get("step")
    if not isinstance(step, int) or not is_number(step):
        read.leave_out(f"line {number}: no step")
        return None
    line: MetricLine = {}
    for name, value in values.items():
        if is_number(value):
            line[name] = value
        # Without an area, text is no metric: it describes the step, as ``version`` does.
        elif isinstance(value, int | float) or (
            "/" in name and value is not None and name != ENGINE
        ):
            read.leave_out(f"line {number}: {name!r} is no finite number")
    return line
