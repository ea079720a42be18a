"""Options of trainers that belong together."""

from collections.abc import Sized
from dataclasses import dataclass, fields
from typing import Annotated, Any

from agl.errors import ConfigError
from agl_records.credit import check_credit
from agl_runs.options import AboveZero, Count, Group, NotNegative

Credit = Annotated[str | dict[str, Any] | None, check_credit]


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(Group):
    """Of the model on the validation tasks.

    Args:
        every: Evaluate after so many steps; in any case before the first and after the last.
        temperature: Sampling temperature in evaluations; 0 takes the most probable token.
        copies: How often each validation task runs, as for ``val/pass@k``.
    """

    every: Count | None = None
    temperature: NotNegative = 0.0
    copies: Count = 1

    def check_tasks(self, owner: str, default: "Evaluation", val: Sized | None) -> None:
        """Refuse what is not the default where there are no validation tasks.

        Raises:
            ConfigError: It names the first such option.
        """
        for one in fields(self) if not val else ():
            value = getattr(self, one.name)
            if value != getattr(default, one.name):
                raise ConfigError(
                    f"{owner}: evaluation.{one.name} is {value}, and there are no validation tasks "
                    "to evaluate on. Give some (val in a file, val_dataset in Python), or leave "
                    f"evaluation.{one.name} out"
                )


@dataclass(frozen=True, kw_only=True, repr=False)
class Checkpoints(Group):
    """When weights are saved.

    Args:
        every: Save after so many steps; after the last step in any case.
        keep_last: Keep so many of the newest checkpoints, and the best by held-out reward; None
            keeps all.
    """

    every: Count | None = None
    keep_last: Count | None = None

    def problem(self) -> str | None:
        if self.keep_last is not None and self.every is None:
            return (
                "keep_last removes older checkpoints, and without checkpoints.every there is one, "
                "at the end. Give checkpoints.every, or leave it out"
            )
        return None


@dataclass(frozen=True, kw_only=True, repr=False)
class Rollouts(Group):
    """Limits of the rollouts of a run.

    Args:
        timeout_seconds: Limit of one attempt; None has no limit.
        unresponsive_seconds: A rollout whose runner is silent for longer is tried once more, by
            whichever runner is there; None waits for the limit above.
    """

    timeout_seconds: AboveZero | None = 300.0
    unresponsive_seconds: AboveZero | None = 60.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Stopping(Group):
    """When a run ends before its last step.

    Args:
        target_reward: End when the mean rewards of three steps in a row have reached it.
        max_idle_steps: Fail after so many steps in a row in which nothing could be trained, and at
            the end of a run that trained nothing. End well if the run has learned something, most
            rollouts of the last of these steps succeeded, and their rewards are equal by task.
    """

    target_reward: float | None = None
    max_idle_steps: Count = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class Lora(Group):
    """An adapter (LoRA, arXiv:2106.09685).

    Args:
        rank: Rank of the two matrices that the adapter adds to each layer.
        alpha: What the adapter adds counts ``alpha / rank`` times; None takes twice the rank.
        modules: Names of the layers that get one, or the last parts of them, as ``q_proj``; None
            takes all linear ones but the output layer.
    """

    rank: Count = 32
    alpha: AboveZero | None = None
    modules: list[str] | None = None

    @property
    def effective_alpha(self) -> float:
        """Alpha, with its default."""
        return self.alpha or 2 * self.rank
