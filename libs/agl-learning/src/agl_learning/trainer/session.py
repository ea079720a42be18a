"""One start of a run while it runs: its folder, sums, report, and what it asks of the runners."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, StoppedError
from agl.types import RolloutMode
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import Totals
from agl_learning.collect.task_order import digest
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress
from agl_learning.run.folder import Generation
from agl_learning.run.records import Record, Records
from agl_learning.trainer.requests import Requests
from agl_records.ledger.ledger import save_ledger

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore

logger = logging.getLogger("agl.learning")

OTHER_TASKS = "had other tasks"


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

    async def ask(
        self,
        mode: RolloutMode,
        after: int,
        tasks: Sequence[Any],
        copies: int,
        version: int,
        resources_id: str,
        first_group: int = 0,
        *,
        at_once: bool = False,
    ) -> Collected:
        """Run tasks, as far as no earlier start of the run has.

        Args:
            mode: Of the rollouts.
            after: So many steps come before the one, or the evaluation, that they are for.
            tasks: Their inputs.
            copies: How often each of them runs.
            version: Number of the one that answers.
            resources_id: What they work with.
            first_group: The group of the first task.
            at_once: Take what there is; what has not ended is cancelled.
        """
        about = {
            "algorithm": self.algorithm,
            **self.generation.metadata,
            "step": after + (mode == "train"),
            "version": version,
            "round": self.records.round(mode, after),
        }
        return await self.collector.collect(
            tasks,
            copies,
            mode,
            resources_id,
            about,
            key=self.records.key(mode, after),
            first_group=first_group,
            at_once=at_once,
        )

    async def collect(
        self,
        mode: RolloutMode,
        after: int,
        gather: Callable[[], Awaitable[Collected]],
        tasks: Callable[[int], Sequence[Any]],
        copies: int,
        why_silent: Callable[[], Awaitable[str | None]],
        is_budget_spent: Callable[[], bool],
    ) -> Collected:
        """All that belongs to a place: what its record has, or what is gathered now.

        What an earlier start has collected, and the store does not have any more, is given up.

        Args:
            mode: Of the rollouts.
            after: So many steps come before.
            gather: Collects by ``ask``.
            tasks: Gives those of so many groups, the first ones.
            copies: How often each of them runs.
            why_silent: Says why the version answers no more.
            is_budget_spent: Whether every further model call is refused.

        Raises:
            StoppedError: The run was asked to stop, or its budget was spent, before all were done.
            AlgorithmError: The version answers no more; or not one was done, as servers or the
                network failed their model calls.
        """
        record = self.records.find(mode, after)
        if record is not None and record.copies == copies:
            missing = await self.collector.missing(record.rollout_ids)
            collected = None
            if not missing:
                collected = await self.collector.read(record.rollouts, record.lost)
                collected.seconds = record.seconds
            gone = record.what_is_gone(missing, collected)
            if collected is not None and not gone:
                if _are_of(collected, tasks):
                    return collected
                gone = OTHER_TASKS
            await self.give_up(mode, after, gone)
        number = self.records.round(mode, after)
        collected = await gather()
        if not _are_of(collected, tasks):
            await self.give_up(mode, after, OTHER_TASKS)
            number = self.records.round(mode, after)
            collected = await gather()
        what = f"{mode} rollouts after step {after}"
        _check_done(collected, what, is_budget_spent())
        if (why := await why_silent()) is not None:
            raise AlgorithmError(f"{why}. Go on with the run: {what} that failed run again")
        await self.records.put(mode, after, Record.of(collected, number))
        return collected

    async def give_up(self, mode: RolloutMode, after: int, why: str) -> None:
        """Have what was collected after so many steps, and all that came later, drawn anew."""
        logger.warning(
            "the %s rollouts that were collected after step %d %s. They are given up, and drawn "
            "anew, as is all that came after them",
            "validation" if mode == "val" else "training",
            after,
            why,
        )
        await self.records.redraw(mode, after)


def _are_of(collected: Collected, tasks: Callable[[int], Sequence[Any]]) -> bool:
    """Whether rollouts are of these tasks: those under a key may be of an earlier start."""
    groups = {one.group for one in collected.ended}
    digests = dict(enumerate(digest([task]) for task in tasks(len(groups))))
    return groups == digests.keys() and all(
        digest([one.rollout.input]) == digests[one.group] for one in collected.ended
    )


def _check_done(collected: Collected, what: str, is_budget_spent: bool) -> None:
    """Refuse to go on with rollouts that failed as others of the run will.

    They get no record, so that those that failed run again when the run goes on.
    """
    out = [one.failed if one.unusable else None for one in collected.ended]
    why = [one.why if one and one.kind == "infrastructure" else "" for one in out]
    if is_budget_spent and (collected.num_failed or any(why)):
        raise StoppedError("its budget was spent")
    if why and all(why):
        raise AlgorithmError(
            f"infrastructure failed all {len(why)} {what}, the first with: {why[0]}. See that "
            "gateway, model and runners answer, and go on: these run again"
        )
