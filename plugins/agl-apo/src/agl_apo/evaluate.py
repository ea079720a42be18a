"""Runs a candidate's tasks through the store, each evaluation once, whatever happens between.

The tasks of a dataset are a stream. In the search's, all tasks come in a random order, then all
again in another one; in that of the decision each one is drawn anew. Every candidate is evaluated
on the same beginning of it, so any two are compared on the same tasks.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agl.emitter import find_final_reward
from agl.errors import AlgorithmError, ConfigError
from agl.types import EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode

if TYPE_CHECKING:
    from agl_apo.journal import Journal

logger = logging.getLogger("agl_apo")

Split = Literal["search", "held_out"]
"""``search`` is the train dataset, ``held_out`` what of the validation dataset is not in it."""
MODES: Mapping[Split, RolloutMode] = {"search": "train", "held_out": "val"}


@dataclass(frozen=True, eq=False)
class Candidate:
    """Texts of the prompts that are optimised, and where they came from."""

    candidate_id: str
    texts: dict[str, str]
    """Resource name -> template."""
    parent: str | None = None
    copies: tuple[int, ...] = ()
    """Train tasks that it copies from."""


@dataclass(frozen=True)
class Score:
    """What one evaluation brought."""

    position: int
    """In the stream."""
    task: int
    """In the dataset."""
    rollout_id: str
    reward: float
    """Scaled to 0..1 by ``reward_range``."""
    failure: str | None = None
    """Why it failed; then the reward is the lowest."""


@dataclass(frozen=True)
class Limits:
    """How evaluations are run."""

    reward_range: tuple[float, float] = (0.0, 1.0)
    timeout_seconds: float | None = 3600.0
    """Of a batch."""
    unresponsive_seconds: float = 60.0
    """A runner that is silent for longer is lost, and its evaluation begins again."""
    max_attempts: int = 10
    """How often at most."""


@dataclass
class Evaluator:
    """Scores of all candidates, and how many evaluations they took."""

    journal: "Journal"
    tasks: Mapping[Split, Sequence[Any]]
    seed: int
    limits: Limits
    is_budget_spent: Callable[[], bool] = lambda: False
    """Whether the gateway refuses every further call."""
    shuffled: bool = True
    """Whether the search's stream has its tasks in random order."""
    resources_ids: dict[str, str] = field(default_factory=dict[str, str])
    """Candidate id -> the snapshot that holds it."""
    scores: dict[tuple[str, Split], dict[int, Score]] = field(
        default_factory=dict[tuple[str, Split], dict[int, Score]]
    )
    spent: Counter[Split] = field(default_factory=Counter[Split])

    @property
    def total(self) -> int:
        """Evaluations so far."""
        return self.spent.total()

    def task_at(self, split: Split, position: int) -> int:
        """Position in the dataset of the stream's task."""
        number = len(self.tasks[split])
        if split == "held_out":
            return random.Random(f"{self.seed}/{split}/{position}").randrange(number)
        if not self.shuffled:
            return position % number
        order = list(range(number))
        random.Random(f"{self.seed}/{split}/{position // number}").shuffle(order)
        return order[position % number]

    def known(self, candidate: Candidate, split: Split) -> list[Score]:
        """What is known of a candidate, by position."""
        found = self.scores.get((candidate.candidate_id, split), {})
        return [found[position] for position in sorted(found)]

    async def extend(
        self, candidates: Sequence[Candidate], split: Split, positions: Sequence[int]
    ) -> None:
        """Evaluate all candidates at these positions; what is known is not evaluated again.

        Raises:
            AlgorithmError: An agent gave no reward, or one outside ``reward_range``; or the
                gateway's budget is spent.
        """
        wanted = [
            (candidate, position)
            for position in positions
            for candidate in candidates
            if position not in self.scores.get((candidate.candidate_id, split), {})
        ]
        if not wanted:
            return
        requests = [self._request(candidate, split, position) for candidate, position in wanted]
        rollouts = await self.journal.store.enqueue_many_rollouts(requests)
        ended = await self._wait([rollout.rollout_id for rollout in rollouts])
        read = await asyncio.gather(
            *(
                self._read(ended[rollout.rollout_id], split, position)
                for rollout, (_, position) in zip(rollouts, wanted, strict=True)
            )
        )
        if self.is_budget_spent() and any(score.failure for score in read):
            raise AlgorithmError(
                f"the gateway's budget was spent after {self.total} evaluations, before there was "
                "a decision; the prompts stay as they were"
            )
        for (candidate, position), score in zip(wanted, read, strict=True):
            self.scores.setdefault((candidate.candidate_id, split), {})[position] = score
        self.spent[split] += len(wanted)

    def _request(self, candidate: Candidate, split: Split, position: int) -> EnqueueRolloutRequest:
        name, task = candidate.candidate_id, self.task_at(split, position)
        return EnqueueRolloutRequest(
            input=self.tasks[split][task],
            mode=MODES[split],
            resources_id=self.resources_ids[name],
            config=RolloutConfig(
                unresponsive_seconds=self.limits.unresponsive_seconds,
                max_attempts=self.limits.max_attempts,
                retry_condition=["unresponsive"],
            ),
            metadata=self.journal.metadata(
                "evaluation", candidate=name, split=split, position=position, task=task
            ),
            key=self.journal.key("evaluation", name, split, position),
        )

    async def _wait(self, rollout_ids: list[str]) -> dict[str, Rollout]:
        store, limit = self.journal.store, self.limits.timeout_seconds
        deadline = None if limit is None else time.monotonic() + limit
        ended = await store.wait_for_rollouts(
            rollout_ids=rollout_ids,
            timeout=None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        late = set(rollout_ids) - {rollout.rollout_id for rollout in ended}
        for rollout_id in late:
            await store.update_rollout(rollout_id, status="cancelled")
        if late:
            logger.warning(
                "%d of %d evaluations had not ended after rollout_batch_timeout=%s seconds; they "
                "were cancelled and count as failed. Are runners connected?",
                len(late),
                len(rollout_ids),
                limit,
            )
            ended = await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        return {rollout.rollout_id: rollout for rollout in ended}

    async def _read(self, rollout: Rollout, split: Split, position: int) -> Score:
        task, low, high = self.task_at(split, position), *self.limits.reward_range
        if rollout.status != "succeeded":
            error = getattr(getattr(rollout, "attempt", None), "error", None)
            why = f"{error.boundary}: {error.type}: {error.message}" if error else rollout.status
            return Score(position, task, rollout.rollout_id, 0.0, why)
        spans = await self.journal.store.query_spans(rollout.rollout_id, "latest")
        reward = find_final_reward(spans)
        if reward is None:
            raise AlgorithmError(
                f"rollout {rollout.rollout_id!r} succeeded without a reward; an agent whose "
                "prompts are to be optimised returns one, or calls agl.emit_reward"
            )
        if not low <= reward <= high:
            raise AlgorithmError(
                f"rollout {rollout.rollout_id!r} has the reward {reward:g}, outside "
                f"reward_range=({low:g}, {high:g}); the bounds of the statistics need to know it. "
                "Give the range that rewards really have"
            )
        return Score(position, task, rollout.rollout_id, (reward - low) / (high - low))


def check_range(reward_range: tuple[float, float]) -> None:
    """Refuse a range that is none.

    Raises:
        ConfigError: The lower end is not below the upper one.
    """
    if not reward_range[0] < reward_range[1]:
        raise ConfigError(f"reward_range: the first must be below the second; got {reward_range}")
