"""Training in which each step learns from groups of rollouts.

See ``dynamic_sampling`` for groups that taught nothing, ``async_collection`` for later steps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from agl.types import Dataset
from agl_learning.advantages.weighing import check_weighing
from agl_learning.collect.task_order import TaskOrder
from agl_learning.resume.collection_journal import collect_request, find_request, give_up, key_of
from agl_learning.trainer.async_collection import Ahead, check_ahead, reject_stale
from agl_learning.trainer.dynamic_sampling import check_refills, collect_refilled
from agl_learning.trainer.weight_steps import InPlaceTraining
from agl_records.options import Count

if TYPE_CHECKING:
    from agl_learning.advantages.weighing import Weighed
    from agl_learning.collect.results import Collected
    from agl_learning.resume.collection_journal import Request


@dataclass(kw_only=True, eq=False, repr=False)
class GatheringTraining(InPlaceTraining):
    """What a step learns from.

    Args:
        steps: Training steps in all.
        groups_per_step: P, how many tasks a step has.
        group_size: G, how often each of them runs.
        max_refills: How often, at most, a step draws other tasks in the place of those whose groups
            taught nothing, as all their rewards were equal, say (dynamic sampling, DAPO).
        max_staleness: While a step is trained, the rollouts of so many later steps run: the weights
            that sample are up to so many updates behind those that learn. 0 waits for each step.
    """

    growing_options = frozenset({"steps"})

    steps: Count = 100
    groups_per_step: Count = 8
    group_size: Count = 8
    max_refills: Annotated[int, Ge(0)] = 0
    max_staleness: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weighing(self.title, self)
        check_refills(self.title, self, self.max_refills)
        beside = {"deterministic": self.deterministic, "max_refills": self.max_refills}
        check_ahead(self.title, self.max_staleness, **beside)
        self._ahead = Ahead(self.run_request)
        self._tasks = TaskOrder(0, self.seed)
        self._order: dict[str, Any] = {}
        """State of ``_tasks`` after those of the steps that are done."""

    @property
    def num_steps(self) -> int:
        return self.steps

    async def gather(self, train: Dataset[Any]) -> "Collected":
        """What the next step learns from.

        Args:
            train: All tasks.
        """
        if not self.max_staleness:
            return await self._gather_now(train)
        await self.serving()  # not begun by each of several requests
        return await self._gather_ahead(train)

    async def _gather_now(self, train: Dataset[Any]) -> "Collected":
        session = self.session

        async def collect(groups: int, part: int, first: int) -> "Collected | None":
            """Of the next tasks; None where the parts before were given up."""
            if part == 0:
                self._tasks.restore(self._order)
            key = key_of(session, self.journal, "train")
            tasks = [train[index] for index in self._tasks.take(groups)]
            copies = self.group_size
            request = find_request(session, self.journal, "train", tasks, copies, part, first)
            collected = await self.run_request(request)
            return collected if not part or key == key_of(session, self.journal, "train") else None

        collected = await collect_refilled(
            collect, self.weigh, self.groups_per_step, self.max_refills
        )
        self._order = self._tasks.state()
        return collected

    async def _gather_ahead(self, train: Dataset[Any]) -> "Collected":
        done = self.session.steps_done

        def find(tasks: list[Any], after: int) -> "Request":
            places = (tasks, self.group_size, 0, 0, after - done)
            return find_request(self.session, self.journal, "train", *places)

        def renew(request: "Request") -> "Request":
            return find(request.tasks, request.after)

        for after in range(done, min(done + self.max_staleness + 1, self.steps)):
            if after not in self._ahead:
                tasks = [train[index] for index in self._tasks.take(self.groups_per_step)]
                self._ahead.begin(find(tasks, after), self._tasks.state())
        collected, self._order = await self._ahead.take(done, renew)
        return collected

    async def evaluate_when_due(self, val: Dataset[Any] | None, *, last: bool = False) -> None:
        if last and not self.is_budget_spent():
            await self._leave_ahead()
        await super().evaluate_when_due(val, last=last)

    async def _leave_ahead(self) -> None:
        """Account for the rollouts of steps that will not be; if they are after all, draw anew."""
        session, number = self.session, self.session.steps_done
        for request in await self._ahead.stop():
            at = (self.weights_version, await self.serving())
            collected = await collect_request(session, request, *at, at_once=True)
            for row in (row for one in collected.ended for row in one.rows):
                collected.ledger.exclude_row(row, "unused_group", "the run ended before its step")
            await session.keep(collected, number, self.weights_version)
            give_up(self.journal, "train", request.after)

    async def end_serving(self) -> None:
        await self._ahead.stop()
        await super().end_serving()

    def weigh(self, collected: "Collected") -> "list[Weighed]":
        if self.max_staleness:
            self._lags = reject_stale(collected, self.weights_version, self.max_staleness)
        return super().weigh(collected)

    def particulars(self, collected: "Collected") -> dict[str, int]:
        if self.max_staleness:
            return self._lags
        groups = len({one.group for one in collected.ended})
        return {"groups/refilled": groups - self.groups_per_step} if self.max_refills else {}

    async def keep_for_later(self) -> None:
        await self._ahead.wait()
