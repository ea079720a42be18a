"""A hook that ends a run when a metric gets no better."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agl.algorithm.base import Algorithm
from agl.errors import ConfigError
from agl.plugins.hooks import Hook
from agl.utils.text import did_you_mean
from agl_runs.options import Count, Name, NotNegative, check_options

if TYPE_CHECKING:
    from agl_learning.trainer.base import Training

logger = logging.getLogger("agl.learning")


@dataclass(kw_only=True, eq=False)
class EarlyStopping(Hook):
    """Ends a run in order when ``metric`` has not improved for ``patience`` values in a row.

    Args:
        metric: Of steps or, as ``val/reward/mean``, of evaluations, for which the algorithm needs
            ``evaluation.every``. Values that are not there, as where nothing succeeded, count as no
            better.
        patience: How many values in a row may be no better than the best before.
        min_delta: How much better than the best a value must be to count.
        mode: Whether more or less is better.
    """

    metric: Name = "val/reward/mean"
    patience: Count = 3
    min_delta: NotNegative = 0.0
    mode: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        check_options(type(self).__name__, self)
        self.best: float | None = None
        self.no_better = 0
        """Values in a row."""

    def check_training(self, algorithm: "Training", val_dataset: Any) -> None:
        """Refuse a run that it cannot end, and warn of too few steps; before the run begins."""
        if type(algorithm).ask_to_end is Algorithm.ask_to_end:
            raise ConfigError(
                f"{type(self).__name__} cannot end a run of {type(algorithm).__name__}, as it can "
                "of GRPO, SFT and the others of agl-learning. Leave the hook out"
            )
        is_val = self.metric.startswith("val/")
        every = algorithm.evaluation.every if is_val else 1
        if every is None or (is_val and not val_dataset):
            lack = (
                "there are no validation tasks to evaluate on. Give some (val in a file, "
                "val_dataset in Python)"
                if not val_dataset
                else "the model is evaluated only before the first step and after the last one, so "
                f"the hook can end nothing. Give evaluation.every to {algorithm.title}"
            )
            raise ConfigError(
                f"{type(self).__name__}: metric is {self.metric!r}, and {lack}, or a metric of "
                "steps, as 'reward/mean'"
            )
        values = (algorithm.num_steps - 1) // every + is_val
        if values <= self.patience:
            logger.warning(
                "%s ends nothing in this run: patience is %d, and %s has %d values before the last "
                "of %d steps, of which the first is only compared with",
                *(type(self).__name__, self.patience, self.metric, values, algorithm.num_steps),
            )

    def on_step_end(self, algorithm: "Training", metrics: dict[str, Any]) -> None:
        """Look at the metrics of a step."""
        if not self.metric.startswith("val/"):
            self._look(algorithm, metrics, metrics.get("rows") != 0)

    def on_evaluation_end(self, algorithm: "Training", metrics: dict[str, Any]) -> None:
        """Look at those of an evaluation."""
        if self.metric.startswith("val/"):
            self._look(algorithm, metrics, metrics.get("val/rollouts/succeeded") != 0)

    def _look(self, algorithm: "Training", metrics: dict[str, Any], is_whole: bool) -> None:
        value: float | None = metrics.get(self.metric)
        if is_whole and self.best is None and self.metric not in metrics:
            hint = did_you_mean(self.metric, metrics) or f" There are {', '.join(metrics)}"
            raise ConfigError(f"there is no metric {self.metric!r}, so it ends nothing.{hint}")
        sign = 1 if self.mode == "max" else -1
        if value is not None and (self.best is None or sign * (value - self.best) > self.min_delta):
            self.best, self.no_better = value, 0
            return
        self.no_better += 1
        if self.no_better >= self.patience:
            algorithm.ask_to_end(
                f"{self.metric} was no better than {self.best} {self.no_better} times in a row"
            )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self.best, "no_better": self.no_better}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as a checkpoint has it."""
        self.best, self.no_better = state["best"], state["no_better"]
