"""How far a run is, and how its rewards went, from what its algorithm wrote into its folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agl.types import Run

METRICS: Final = "metrics.jsonl"
"""A JSON object per step or evaluation, each with ``step``."""
_REWARDS: Final = ("reward/mean", "agl/reward/mean")
_VAL_REWARDS: Final = ("val/reward/mean", "val-agl/reward/mean")


@dataclass
class RunMetrics:
    """What the metrics of a run say."""

    step: int | None = None
    """The last one."""
    rewards: dict[int, float | None] = field(default_factory=dict[int, float | None])
    """Step -> mean reward; None where no rollout of it has one."""
    val_rewards: dict[int, float | None] = field(default_factory=dict[int, float | None])
    """The same of evaluations."""

    @property
    def last_reward(self) -> float | None:
        """Of the last step that has one, else of the last evaluation that has one."""
        for rewards in (self.rewards, self.val_rewards):
            known = [reward for reward in rewards.values() if reward is not None]
            if known:
                return known[-1]
        return None


def metrics_of(run: Run) -> RunMetrics:
    """Read the metrics in a run's folder; nothing where they are not here."""
    found = RunMetrics()
    for line in lines_of(run):
        step: Any = line.get("step")
        if not isinstance(step, int):
            continue
        found.step = max(step, found.step or 0)
        for names, rewards in ((_REWARDS, found.rewards), (_VAL_REWARDS, found.val_rewards)):
            for name in names:
                if name in line:
                    rewards[step] = line[name]
    return found


def lines_of(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of a run's metrics, one per step or evaluation; none where they are not here."""
    return _lines(Path(run.folder) / METRICS) if run.folder else iter(())


def metric_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of the metrics in a run's folder; what is none, or cut off, is left out."""
    return list(_lines(folder / METRICS))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        try:
            value: Any = json.loads(line)
        except ValueError:
            continue  # the last one of a process that was killed
        if isinstance(value, dict):
            yield value
