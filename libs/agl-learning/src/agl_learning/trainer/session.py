"""One start of a run while it runs: its folder, sums and report."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

from agl.store.base import LightningStore
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import Totals
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress
from agl_learning.run.folder import Generation
from agl_learning.run.records import Records
from agl_learning.trainer.requests import Requests
from agl_records.ledger.ledger import save_ledger


@dataclass(eq=False)
class Session:
    """One start of a run, anew or going on from ``progress``, which a checkpoint has."""

    algorithm: str
    """In the ledger and in rollouts' metadata."""
    store: LightningStore
    generation: Generation
    folder: Path
    progress: InitVar[Progress]
    gateway: Any
    collector: Collector
    report: Report
    hooks: InitVar[Sequence[object]]
    checkpoint: Path | None = None
    """The newest one."""
    begun_at: int = 0
    """How many of the steps another run has done, from whose checkpoint this one began."""

    def __post_init__(self, progress: Progress, hooks: Sequence[object]) -> None:
        self.steps_done = progress.step
        """Of the whole run; those before this start count."""
        self.taken = progress.taken
        """Tasks that the steps before this start took."""
        self.rewards = list(progress.rewards)
        """Mean per step, those of earlier starts too."""
        self.val_rewards = list(progress.val_rewards)
        """(step, mean) per evaluation."""
        self.totals = Totals(progress.totals)
        """Of the whole run."""
        self.records = Records(self.store, self.algorithm, self.generation)
        self.requests = Requests(hooks, progress)
        """Of hooks."""

    @property
    def run_id(self) -> str:
        """Of the run, the same in all its starts."""
        return self.generation.run

    def is_evaluated(self, step: int) -> bool:
        """Whether the model was evaluated after this step."""
        return any(done == step for done, _ in self.val_rewards)

    async def keep(self, collected: Collected, step: int, version: int) -> None:
        """Keep the ledger of a collection; ``version`` came out of it, or was evaluated."""
        await save_ledger(
            self.store,
            collected.ledger,
            collected.rollouts,
            step=step,
            algorithm=self.algorithm,
            run=self.run_id,
            generation=self.generation.number,
            version=version,
        )
        self.totals.add(collected)
