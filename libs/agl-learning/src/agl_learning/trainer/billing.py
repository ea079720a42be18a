"""Training that somebody bills for: its cost is stated, and can be limited, before it begins."""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl.errors import ConfigError, StoppedError
from agl.types import Dataset
from agl_learning.run.checkpoint import Progress
from agl_learning.run.notes import Notes
from agl_learning.trainer.comparison import Replay
from agl_learning.trainer.loop import run as run_steps
from agl_learning.trainer.version import FineTuning
from agl_runs.options import Count, NotNegative

logger = logging.getLogger("agl.learning")


@dataclass(frozen=True)
class Bill:
    """What one training will cost, as far as that can be told before."""

    examples: int
    tokens: int
    """Of all examples, once."""
    epochs: int
    price_per_million_tokens: float | None
    """None where nobody said."""
    is_estimate: bool
    """Whether ``tokens`` were counted by the model's own tokenizer, or not."""

    @property
    def trained_tokens(self) -> int:
        """What is paid for."""
        return self.tokens * self.epochs

    @property
    def cost(self) -> float | None:
        """In the currency of the price."""
        if self.price_per_million_tokens is None:
            return None
        return self.trained_tokens * self.price_per_million_tokens / 1e6

    def __str__(self) -> str:
        about = "about " if self.is_estimate else ""
        cost = "its cost is not known (price_per_million_tokens is not given)"
        if self.cost is not None:
            cost = f"{about}{self.cost:.2f} at {self.price_per_million_tokens:g} per million"
        return (
            f"{self.examples} examples with {about}{self.tokens:,} tokens, {self.epochs} epochs: "
            f"{about}{self.trained_tokens:,} trained tokens, {cost}"
        )


@dataclass(kw_only=True, eq=False, repr=False)
class PaidTraining(FineTuning):
    """The loop with a statement of costs; the base of trainers that are paid by the token.

    Args:
        dry_run: End before the first training, and say what it would cost.
        price_per_million_tokens: Price of training, to state costs; None states tokens only.
        max_trained_tokens: Limit of the run; a training that would exceed it is not begun.
    """

    safe_options = frozenset({"dry_run", "price_per_million_tokens"})
    growing_options = frozenset({"max_trained_tokens"})

    dry_run: bool = False
    price_per_million_tokens: NotNegative | None = None
    max_trained_tokens: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deterministic:
            raise ConfigError(
                f"{self.title}: deterministic=True cannot be promised of a model that others serve "
                "and train. Leave it out; seeds are sent all the same"
            )
        self.opened = contextlib.AsyncExitStack()
        """What ``prepare`` opens, for ``clean_up`` to close."""
        self.notes: Notes
        """What was asked of the provider; on the disk before anything is asked once more."""

    async def begin(self, checkpoint: Path | None, progress: Progress, folder: Path) -> None:
        self.notes = Notes(folder)
        await super().begin(checkpoint, progress, folder)

    async def clean_up(self) -> None:
        """Close what ``prepare`` opened."""
        await self.opened.aclose()

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Do all iterations that the run has not had yet; with ``dry_run``, state the first bill.

        Raises:
            ConfigError: No tasks, no gateway, a folder of another run, or a key, address or name
                that the provider does not take.
            AlgorithmError: There is too little to train on, or the provider refused or failed; run
                again to go on.
            StoppedError: It would go over ``max_trained_tokens``.
        """
        try:
            await run_steps(self, train_dataset, val_dataset)
        except _DryRunOver as over:
            self.summary = over.summary
            logger.info("%s, dry run: %s; nothing was trained", self.name, over.summary["bill"])

    async def replay(self, step: int) -> Replay:
        """Refuse: it would be billed, and be another training at its provider."""
        raise ConfigError(
            f"{self.title} cannot train a step again: its provider would bill it, and trains "
            "otherwise each time. What was trained is in iterations/ in the run's folder"
        )

    def state(self, bill: Bill, number: int, *, begun: bool) -> None:
        """Say what making version ``number`` costs, and end before it where it must not be.

        Args:
            bill: What it costs.
            number: The version.
            begun: It is paid for already; then it is only said.

        Raises:
            StoppedError: It would go over ``max_trained_tokens``.
        """
        session = self.session
        if not begun:
            logger.info("iteration %d: %s", number, bill)
        if self.dry_run:
            raise _DryRunOver(
                {
                    "dry_run": True,
                    "bill": str(bill),
                    "examples": bill.examples,
                    "trained_tokens": bill.trained_tokens,
                    "cost": bill.cost,
                    "file": str(session.folder / "iterations" / f"{number:04d}/examples.jsonl"),
                    "rewards": session.rewards,
                    "run_dir": str(session.folder),
                }
            )
        before = sum(version.metrics["trained_tokens"] for version in self.versions[1:])
        total, most = before + bill.trained_tokens, self.max_trained_tokens
        if most is not None and total > most and not begun:
            raise StoppedError(
                f"as iteration {number} would train {bill.trained_tokens:,} tokens, {total:,} with "
                f"those before, and max_trained_tokens is {most:,} (nothing was sent; raise it)"
            )

    def cost_metrics(self, bill: Bill, trained_tokens: int | None = None) -> dict[str, Any]:
        """Metrics of a training.

        Args:
            bill: What was stated.
            trained_tokens: What the provider billed; None where it did not say.
        """
        tokens = bill.trained_tokens if trained_tokens is None else trained_tokens
        metrics: dict[str, Any] = {
            "examples": bill.examples,
            "epochs": bill.epochs,
            "stated_tokens": bill.trained_tokens,
            "trained_tokens": tokens,
        }
        if bill.price_per_million_tokens is not None:
            metrics["cost"] = tokens * bill.price_per_million_tokens / 1e6
        return metrics


class _DryRunOver(Exception):
    """Ends a dry run where the first training would be."""

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__("the dry run is over")
        self.summary = summary
