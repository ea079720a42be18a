"""Runs a candidate's tasks through the store, each evaluation once, whatever happens between.

The tasks of a dataset are a stream: all of them in a random order, then all again, in the search in
another order, in the decision in the same one. Every candidate is evaluated on the same beginning
of it, so any two are compared on the same tasks.

An evaluation that fails says nothing about the prompt: it is no reward, not even the lowest. One
whose reward cannot be read, or is outside of ``reward_range``, failed as well. It is run again, up
to ``Limits.tries`` times in all, and then left out, with its reason. A candidate of which too many
evaluations were left out is not compared with others any more; if it is the first prompt, or if a
whole batch failed, the run stops.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from agl.algorithm.infrastructure import InfrastructureFailures, infrastructure_failure
from agl.algorithm.mixing import MixingCheck, Ran, ran
from agl.emitter import find_final_reward, reward_problem
from agl.errors import AlgorithmError, ConfigError, InvalidTransitionError, MixedCallsError
from agl.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
)

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl_apo.journal import Journal

logger = logging.getLogger("agl.apo")

Split = Literal["search", "held_out"]
"""``search`` is the train dataset, ``held_out`` what of the validation dataset is not in it."""
VOID = "void"
"""In the metadata of an evaluation that is no try of a run which goes on after it."""
MIXED = "mixed"
"""So it is void although it succeeded."""
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


@dataclass(frozen=True)
class Failed:
    """An evaluation that failed as often as it was run; it has no reward."""

    position: int
    """In the stream."""
    task: int
    """In the dataset."""
    rollout_id: str
    """Of the last one."""
    why: str


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
    tries: int = 3
    """How often an evaluation that fails is run, at most."""
    max_failed: float = 0.2
    """Part of a candidate's evaluations that may be left out."""
    infrastructure_failures: InfrastructureFailures = "exclude"
    """Unless "keep", an evaluation failed if servers or the network failed a model call of it."""

    def check(self) -> None:
        """Refuse what is out of range.

        Raises:
            ConfigError: It names the option.
        """
        if not self.reward_range[0] < self.reward_range[1]:
            raise ConfigError(
                f"reward_range: the first must be below the second; got {self.reward_range}"
            )
        if self.tries < 1:
            raise ConfigError(f"evaluation_tries must be at least 1; got {self.tries}")
        if not 0 <= self.max_failed < 1:
            raise ConfigError(f"max_failed must be at least 0 and below 1; got {self.max_failed}")

    def too_many(self, failed: int, evaluations: int) -> bool:
        """Whether a candidate cannot be judged; two failures never are too many, but all are."""
        return failed > max(2.0, self.max_failed * evaluations) or 0 < evaluations == failed


@dataclass
class Evaluator:
    """Scores of all candidates, and how many evaluations they took."""

    journal: "Journal"
    tasks: Mapping[Split, Sequence[Any]]
    seed: int
    limits: Limits
    is_budget_spent: Callable[[], bool] = lambda: False
    """Whether the gateway refuses every further call."""
    gateway: "Gateway | None" = None
    """Flushed before spans are read."""
    shuffled: bool = True
    """Whether the search's stream has its tasks in random order."""
    resources_ids: dict[str, str] = field(default_factory=dict[str, str])
    """Candidate id -> the snapshot that holds it."""
    mixing: MixingCheck = field(default_factory=MixingCheck)
    outcomes: dict[tuple[str, Split], dict[int, Score | Failed]] = field(
        default_factory=dict[tuple[str, Split], dict[int, Score | Failed]]
    )
    """By position in the stream."""
    spent: Counter[Split] = field(default_factory=Counter[Split])
    again: int = 0
    """Evaluations that were run again because they had failed; not among ``spent``."""

    @property
    def total(self) -> int:
        """Evaluations so far, each counted once."""
        return self.spent.total()

    def task_at(self, split: Split, position: int) -> int:
        """Position in the dataset of the stream's task."""
        number = len(self.tasks[split])
        if split == "search" and not self.shuffled:
            return position % number
        turn = 0 if split == "held_out" else position // number
        order = list(range(number))
        random.Random(f"{self.seed}/{split}/{turn}").shuffle(order)
        return order[position % number]

    def known(self, candidate: Candidate, split: Split) -> list[Score]:
        """What is known of a candidate, by position."""
        return [one for one in self._of(candidate, split) if isinstance(one, Score)]

    def failed(self, candidate: Candidate, split: Split) -> list[Failed]:
        """Its evaluations that were left out, by position."""
        return [one for one in self._of(candidate, split) if isinstance(one, Failed)]

    def count(self, candidate: Candidate, split: Split) -> int:
        """How many evaluations of a candidate have ended."""
        return len(self._of(candidate, split))

    def is_broken(self, candidate: Candidate, split: Split) -> bool:
        """Whether so many of its evaluations failed that it cannot be judged."""
        failed, done = self.failed(candidate, split), self.count(candidate, split)
        return self.limits.too_many(len(failed), done)

    def _of(self, candidate: Candidate, split: Split) -> list[Score | Failed]:
        found = self.outcomes.get((candidate.candidate_id, split), {})
        return [found[position] for position in sorted(found)]

    async def extend(
        self, candidates: Sequence[Candidate], split: Split, positions: Sequence[int]
    ) -> None:
        """Evaluate all candidates at these positions; what is known is not evaluated again.

        Raises:
            AlgorithmError: An agent gave no reward; all of
                several candidates' evaluations failed; or the gateway's budget is spent.
            MixedCallsError: Calls of rollouts that ran side by side were recorded in each other.
        """
        wanted = [
            (candidate, position)
            for position in positions
            for candidate in candidates
            if position not in self.outcomes.get((candidate.candidate_id, split), {})
        ]
        if not wanted:
            return
        read: dict[tuple[Candidate, int], Score | Failed] = {}
        tries = dict.fromkeys(wanted, 0)
        pending, number = wanted, 0
        while pending:
            over = await self._run(pending, split, number)
            for place, (outcome, counts) in over.items():
                read[place] = outcome
                tries[place] += counts
            pending = [
                place
                for place in pending
                if isinstance(read[place], Failed) and tries[place] < self.limits.tries
            ]
            if self.is_budget_spent() and any(isinstance(one, Failed) for one in read.values()):
                raise AlgorithmError(
                    f"the gateway's budget was spent after {self.total} evaluations, before there "
                    "was a decision; the prompts stay as they were"
                )
            number += 1
            self.again += len(pending)
        failed = [one for one in read.values() if isinstance(one, Failed)]
        if len(failed) == len(read) and len({candidate for candidate, _ in read}) > 1:
            await self.stop(failed, f"all {len(failed)} evaluations of a batch failed")
        for (candidate, position), outcome in read.items():
            self.outcomes.setdefault((candidate.candidate_id, split), {})[position] = outcome
        self.spent[split] += len(wanted)

    async def require_success(self, candidate: Candidate, split: Split, hint: str = "") -> None:
        """Stop when the first prompt cannot be judged.

        Args:
            candidate: The first prompt.
            split: Where.
            hint: See ``stop``.

        Raises:
            AlgorithmError: Too many of its evaluations failed; says why.
        """
        if self.is_broken(candidate, split):
            failed, count = self.failed(candidate, split), self.count(candidate, split)
            which = "all" if len(failed) == count else f"{len(failed)} of"
            await self.stop(failed, f"{which} {count} evaluations of the first prompt failed", hint)

    async def stop(self, failed: Sequence[Failed], what: str, hint: str = "") -> NoReturn:
        """End the run; one that continues it runs these evaluations again.

        Args:
            failed: They are why.
            what: How many of what failed.
            hint: A sentence more, with a blank before it.

        Raises:
            AlgorithmError: Always; says what failed, how often, and most often why.
        """
        await self._void(one.rollout_id for one in failed)
        raise AlgorithmError(
            f"{self.journal.algorithm}: {what}, in up to {self.limits.tries} runs each, most often "
            f"with {most_frequent(failed)!r}.{hint} Mend that and run again: it continues here"
        )

    async def _void(self, rollout_ids: Iterable[str], why: bool | str = True) -> None:
        store = self.journal.store
        for rollout_id in rollout_ids:
            rollout = await store.get_rollout_by_id(rollout_id)
            if rollout is not None:
                await store.update_rollout(
                    rollout_id, metadata={**(rollout.metadata or {}), VOID: why}
                )

    async def _run(
        self, wanted: Sequence[tuple[Candidate, int]], split: Split, number: int
    ) -> dict[tuple[Candidate, int], tuple[Score | Failed, int]]:
        """Run each once and read what came of it; 0 beside it if that was no try of this run."""
        requests = [self._request(*place, split, number) for place in wanted]
        rollouts = await self.journal.store.enqueue_many_rollouts(requests)
        ended, late = await self._wait([rollout.rollout_id for rollout in rollouts])
        if self.gateway is not None:
            await self.gateway.flush()
        read = await asyncio.gather(
            *(
                self._read(ended[rollout.rollout_id], split, position)
                for rollout, (_, position) in zip(rollouts, wanted, strict=True)
            )
        )
        try:
            await self.mixing.look(one for _, one in read)
        except MixedCallsError:
            # A run that goes on after the agent was mended runs them again.
            await self._void((rollout.rollout_id for rollout in rollouts), MIXED)
            raise
        # Who waited in vain for a runner once need not do so twice more.
        counts = [
            self.limits.tries
            if rollout.rollout_id in late
            else VOID not in (rollout.metadata or {})
            for rollout in rollouts
        ]
        outcomes = zip((outcome for outcome, _ in read), map(int, counts), strict=True)
        return dict(zip(wanted, outcomes, strict=True))

    def _request(
        self, candidate: Candidate, position: int, split: Split, number: int
    ) -> EnqueueRolloutRequest:
        name, task = candidate.candidate_id, self.task_at(split, position)
        again = [f"again-{number}"] if number else []
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
                "evaluation",
                candidate=name,
                split=split,
                position=position,
                task=task,
                again=number,
            ),
            key=self.journal.key("evaluation", name, split, position, *again),
        )

    async def _wait(self, rollout_ids: list[str]) -> tuple[dict[str, Rollout], Collection[str]]:
        """All of them as they ended, and the ids of those that were cancelled for it."""
        store, limit = self.journal.store, self.limits.timeout_seconds
        deadline = None if limit is None else time.monotonic() + limit
        ended = await store.wait_for_rollouts(
            rollout_ids=rollout_ids,
            timeout=None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        late = set(rollout_ids) - {rollout.rollout_id for rollout in ended}
        for rollout_id in late:
            with contextlib.suppress(InvalidTransitionError):  # it has ended meanwhile
                await store.update_rollout(rollout_id, status="cancelled")
        if late:
            logger.warning(
                "%d of %d evaluations had not ended after rollout_batch_timeout=%s seconds; they "
                "are cancelled and left out. Are runners connected?",
                len(late),
                len(rollout_ids),
                limit,
            )
            ended = await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0)
        return {rollout.rollout_id: rollout for rollout in ended}, late

    async def _read(
        self, rollout: Rollout, split: Split, position: int
    ) -> tuple[Score | Failed, Ran | None]:
        task, low, high = self.task_at(split, position), *self.limits.reward_range
        spans: Sequence[Span] = ()
        if rollout.status == "succeeded":
            spans = await self.journal.store.query_spans(rollout.rollout_id, "latest")
        why = why_failed(rollout, spans, self.limits.infrastructure_failures)
        where: Ran | None = None
        if rollout.status == "succeeded" and (rollout.metadata or {}).get(VOID) == MIXED:
            why = "its calls mixed with those of others"
        elif rollout.status == "succeeded" and isinstance(rollout, AttemptedRollout):
            where = ran(rollout.rollout_id, rollout.input, rollout.attempt, spans)
        if why is not None:
            return Failed(position, task, rollout.rollout_id, why), where
        reward = find_final_reward(spans)
        problem = next(filter(None, map(reward_problem, reversed(spans))), None)
        if reward is None and problem is not None:
            return Failed(position, task, rollout.rollout_id, problem), where
        if reward is None:
            raise AlgorithmError(
                f"rollout {rollout.rollout_id!r} succeeded without a reward; an agent whose "
                "prompts are to be optimised returns one, or calls agl.emit_reward"
            )
        if not low <= reward <= high:
            why = (
                f"the reward {reward:g}, outside reward_range=({low:g}, {high:g}): the bounds of "
                "the statistics need the range that rewards really have"
            )
            return Failed(position, task, rollout.rollout_id, why), where
        return Score(position, task, rollout.rollout_id, (reward - low) / (high - low)), where


def why_failed(
    rollout: Rollout, spans: Sequence[Span], policy: InfrastructureFailures = "exclude"
) -> str | None:
    """Why an evaluation brought no reward that could be used; None if it did.

    Args:
        rollout: It, ended.
        spans: Of its last attempt, if it succeeded.
        policy: Whether it counts where servers or the network failed a model call.
    """
    if rollout.status == "succeeded":
        found = None if policy == "keep" else infrastructure_failure(spans)
        return None if found is None else f"infrastructure: {found}"
    error = getattr(getattr(rollout, "attempt", None), "error", None)
    return f"{error.boundary}: {error.type}: {error.message}" if error else rollout.status


def most_frequent(failed: Sequence[Failed]) -> str:
    """The reason that most of them give."""
    return Counter(one.why for one in failed).most_common(1)[0][0]
