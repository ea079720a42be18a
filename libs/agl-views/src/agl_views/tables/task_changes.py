"""Which tasks of a run became better, and which became worse."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from agl.store.base import LightningStore
from agl.types import Rollout
from agl_views.tables.rollout_table import Wanted, listed


@dataclass(frozen=True)
class TaskChange:
    """Mean rewards of a task in the first and in the last step that ran it."""

    task: Any
    mode: str | None
    first_step: int
    first: float
    last_step: int
    last: float
    rollouts: int
    """That succeeded, in all steps."""
    rollout_id: str
    """One of the last step."""

    @property
    def difference(self) -> float:
        """Below 0 where the task became worse."""
        return self.last - self.first

    def as_json(self) -> dict[str, Any]:
        """For programs: JSON values."""
        return {**asdict(self), "difference": self.difference}


def task_text(mode: str | None, task: Any) -> str:
    """A task as people read it, with its mode."""
    text = task if isinstance(task, str) else json.dumps(task, sort_keys=True, ensure_ascii=False)
    return f"{mode}: {text}" if mode else text


async def task_changes(store: LightningStore, run_id: str) -> list[TaskChange]:
    """The tasks that a run has rewards of in two steps or more, the greatest loss first.

    Args:
        store: Of the run.
        run_id: Which; a rollout is of the step that its algorithm says, or of its epoch.
    """
    tasks: defaultdict[str, defaultdict[int, list[Rollout]]]
    tasks = defaultdict(lambda: defaultdict(list))
    for rollout in (await listed(store, Wanted(["succeeded"], run=run_id, is_least=True))).rollouts:
        about = rollout.metadata or {}
        step = about.get("step", about.get("epoch"))
        if isinstance(step, int):
            tasks[task_text(rollout.mode, rollout.input)][step].append(rollout)
    several = [steps for steps in tasks.values() if len(steps) > 1]

    def mean(rollouts: list[Rollout]) -> float | None:
        rewards = [one.reward for one in rollouts if one.reward is not None]
        return fmean(rewards) if rewards else None

    found: list[TaskChange] = []
    for steps in several:
        begin, end = min(steps), max(steps)
        first, last, newest = mean(steps[begin]), mean(steps[end]), steps[end][-1]
        if first is not None and last is not None:
            number = sum(map(len, steps.values()))
            about = newest.input, newest.mode, begin, first, end, last, number, newest.rollout_id
            found.append(TaskChange(*about))
    return sorted(found, key=lambda one: one.difference)
