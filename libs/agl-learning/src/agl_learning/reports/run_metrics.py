"""How far a run is, and how its rewards went, from what its algorithm wrote into its folder."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from agl.algorithm.run_result import RunResult
from agl_learning.reports.diagnostics import OF_A_MODEL
from agl_learning.reports.json_lines import JsonLines, is_number, read_json_lines
from agl_runs.records import Run
from agl_runs.result import known_of

_ENGINE: Final = "train/engine"
"""Text: the trainer of a version of fine-tuning, and its version."""
_DRAWN: Final = {
    "reward/std": "Spread of rewards in a step, standard deviation",
    "failures/bias": "Shift of rewards by what failures left out, in their deviations",
    "entropy": "Entropy, nats per token",
    "kl": "KL to the reference, nats per token",
    "grad_norm": "Gradient norm, before it is cut",
    "loss/total": "Loss",
    "clip_fraction": "Share of the weight held by a bound",
    "logprob_gap": "Recorded log-probabilities against the model's, nats",
    "version_lag": "Staleness, versions behind",
    "time/step": "Seconds per step",
    "cost": "Cost of training per step",
}
"""Metric that gets a picture, in the page and in the report -> what it is, with its unit."""


@dataclass(frozen=True)
class RunMetrics:
    """What the metrics of a run say."""

    FILE: ClassVar[str] = "metrics.jsonl"
    """In a run's folder: a JSON object per step or evaluation, each with ``step``."""

    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """One per step or evaluation: ``step``, a whole number, and finite numbers by name."""
    said: RunResult = RunResult()
    """What the run says of itself at its end."""
    unread: str = ""
    """What of the file cannot be read, and is left out; "" where all was read."""

    @classmethod
    def read(cls, folder: Path | None, said: RunResult | None = None) -> "RunMetrics":
        """Those in the folder of a run; None has none."""
        read = JsonLines(cls.FILE) if folder is None else read_json_lines(folder / cls.FILE)
        lines = [line for at in read.objects if (line := _numbers(read, *at)) is not None]
        return cls(lines, said or RunResult(), read.unread)

    @classmethod
    def of(cls, run: Run) -> "RunMetrics":
        """Those of a run; none where its folder is not here."""
        folder = Path(run.folder) if run.folder else None
        return cls.read(folder, known_of(run.run_id, folder, run))

    @property
    def step(self) -> int | None:
        """The last one."""
        return max((line["step"] for line in self.lines), default=None)

    @cached_property
    def rewards(self) -> dict[int, float | None]:
        """Step -> mean reward in training; None where no rollout of it has one."""
        found = {step: _known(reward) for step, reward in enumerate(self.said.steps, 1)}
        return dict(sorted((found | self._by_step("reward/mean")).items()))

    @cached_property
    def val_rewards(self) -> dict[int, float | None]:
        """The same of evaluations; step 0 is before training."""
        found = {step: _known(reward) for step, reward in self.said.held_out if is_number(step)}
        found |= self._by_step("val/reward/mean")
        for seed in self._by_step("val/reward/seed").values():
            found[0] = seed  # a comparison of prompts measures both at its end
        return dict(sorted(found.items()))

    @property
    def last_rewards(self) -> tuple[float | None, float | None]:
        """Of the last step that has one, and of the last evaluation that has one."""
        both = [
            [y for y in one.values() if y is not None] for one in (self.rewards, self.val_rewards)
        ]
        return both[0][-1] if both[0] else None, both[1][-1] if both[1] else None

    @cached_property
    def series(self) -> dict[str, dict[int, float]]:
        """Name of a metric -> step -> value, by step; those of evaluations begin with ``val/``."""
        names = dict.fromkeys(name for line in self.lines for name in line)
        each = {name: self._by_step(name) for name in names if name not in ("step", "generation")}
        return {name: dict(sorted(by_step.items())) for name, by_step in each.items()}

    def drawn(self) -> Iterator[tuple[str, str]]:
        """Names of metrics that get a picture, those of each of several models too, and titles."""
        models = [one.removesuffix(OF_A_MODEL) for one in self.series if one.endswith(OF_A_MODEL)]
        for metric, title in _DRAWN.items():
            if metric in self.series:
                yield metric, title
            for model in models:
                if model != "val" and (name := f"{model}/{metric}") in self.series:
                    yield name, f"{title}: {model}"

    def total(self, *names: str) -> float | None:
        """The sum of metrics over all steps and evaluations; None where no line has any."""
        both = [one for name in names for one in (name, f"val/{name}")]
        values = [value for one in both for value in self.series.get(one, {}).values()]
        return sum(values) if values else None

    def _by_step(self, name: str) -> dict[int, float]:
        return {line["step"]: line[name] for line in self.lines if name in line}


def _known(reward: object) -> float | None:
    """A number; others write into a run's folder, too."""
    return float(reward) if isinstance(reward, int | float) and is_number(reward) else None


def _numbers(read: JsonLines, number: int, values: dict[str, Any]) -> dict[str, Any] | None:
    step: Any = values.get("step")
    if not isinstance(step, int) or not is_number(step):
        read.leave_out(f"line {number}: no step")
        return None
    line: dict[str, Any] = {}
    for name, value in values.items():
        if is_number(value):
            line[name] = value
        # Without an area, text is no metric: it describes the step, as ``version`` does.
        elif isinstance(value, int | float) or (
            "/" in name and value is not None and name != _ENGINE
        ):
            read.leave_out(f"line {number}: {name!r} is no finite number")
    return line
