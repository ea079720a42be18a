"""One start of a run while it runs: its folder, sums and report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import Totals
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress
from agl_learning.run.folder import Generation
from agl_learning.run.records import Records
from agl_learning.trainer.requests import Requests
from agl_records.ledger.ledger import save_ledger

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore


@dataclass(kw_only=True)
class Session:
    """One start of a run, anew or going on."""

    algorithm: str
    """Its name, in the ledger and in rollouts' metadata."""
    folder: Path
    generation: Generation
    report: Report
    store: "LightningStore"
    gateway: "Gateway"
    collector: Collector
    records: Records
    totals: Totals
    """Of the whole run."""
    steps_done: int
    """Of the whole run; those before this start count."""
    taken: int = 0
    """Tasks that the steps before this start took."""
    requests: Requests = field(default_factory=lambda: Requests((), Progress(0, 0)))
    """Of hooks."""
    checkpoint: Path | None = None
    """The newest one."""
    begun_at: int = 0
    """How many of them another run has done, from whose checkpoint this one began."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step, those of earlier starts too."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(step, mean) per evaluation."""

    @property
    def run_id(self) -> str:
        """Of the run, the same in all its starts."""
        return self.generation.run

    def is_evaluated(self, step: int) -> bool:
        """Whether the model was evaluated after this step."""
        return any(done == step for done, _ in self.val_rewards)

    async def keep(self, collected: Collected, step: int, version: int) -> None:
        """Keep the ledger of a collection whose calls all have their bin.

        Args:
            collected: What was collected.
            step: That it belongs to.
            version: Which came out of it, or was evaluated.
        """
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
