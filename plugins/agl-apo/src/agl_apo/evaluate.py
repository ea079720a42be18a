"""Runs a candidate's tasks through the store, each evaluation once, whatever happens between.

The tasks of a dataset are a stream: all of them in a random order, then all again, in the search in
another order, in the decision in the same one. Every candidate is evaluated on the same beginning
of it, so any two are compared on the same tasks.

An evaluation that fails says nothing about the prompt: it is no reward, not even the lowest. One
whose reward cannot be read, or is outside of ``reward_range``, failed as well. It is run again as
often as ``failures`` says (not where the key is wrong or the model is not there: ``FINAL``), and
then left out, with its reason. A candidate of which too
many evaluations were left out is not compared with others any more; if it is the first prompt, or
if a whole batch failed, the run stops.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from agl.algorithm.gateway import Gateway
from agl.errors import AlgorithmError
from agl.types import EnqueueRolloutRequest, RolloutConfig, RolloutMode
from agl_apo.journal import StoreJournal
from agl_apo.options import PromptOptions
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import COUNTED, Ended
from agl_records.seeds import SEED, seed_of
from agl_runs.failures import KINDS_WITH_POLICY, RolloutFailure
from agl_views.runs.prompt_runs import PromptRuns

logger = logging.getLogger("agl.apo")

Split = Literal["search", "held_out"]
"""``search`` is the train dataset, ``held_out`` what of the validation dataset is not in it."""
CLIENTS = ("openai", "anthropic", "litellm")
FINAL = ("AuthenticationError", "PermissionDeniedError", "NotFoundError")
"""What these clients of models raise for a wrong key, for no right to a model, and for a model that
is not there: the same again would fail again, so such an evaluation is not run again."""
MAX_ATTEMPTS = 10
"""So often an evaluation begins again whose runner was lost."""
MODES: Mapping[Split, RolloutMode] = {"search": "train", "held_out": "val"}


@dataclass(frozen=True, eq=False)
class Candidate:
    """Texts of the prompts that are optimised."""

    candidate_id: str
    texts: dict[str, str]
    """Resource name -> template."""
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
class NoScore:
    """An evaluation that failed as often as it was run; it has no reward."""

    position: int
    """In the stream."""
    task: int
    """In the dataset."""
    rollout_id: str
    """Of the last one."""
    why: str


@dataclass
class Evaluator:
    """Scores of all candidates, and how many evaluations they took."""

    journal: StoreJournal
    tasks: Mapping[Split, Sequence[Any]]
    options: PromptOptions
    is_budget_spent: Callable[[], bool] = lambda: False
    """Whether the gateway refuses every further call."""
    gateway: Gateway | None = None
    """Flushed before spans are read."""
    shuffled: bool = True
    """Whether the search's stream has its tasks in random order."""
    start: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Metadata of all evaluations: the run, and which start of it this is."""
    resources_ids: dict[str, str] = field(default_factory=dict[str, str])
    """Candidate id -> the snapshot that holds it."""
    outcomes: dict[tuple[str, Split], dict[int, Score | NoScore]] = field(
        default_factory=dict[tuple[str, Split], dict[int, Score | NoScore]]
    )
    """By position in the stream."""
    spent: Counter[Split] = field(default_factory=Counter[Split])
    show: Callable[[int], None] = lambda done: None
    """Told how many evaluations there have been, after each batch."""
    again: int = 0
    """Evaluations that were run again because they had failed; not among ``spent``."""

    def __post_init__(self) -> None:
        self._config = RolloutConfig(
            unresponsive_seconds=self.options.unresponsive_seconds,
            max_attempts=MAX_ATTEMPTS,
            retry_condition=["unresponsive"],
        )
        failures = self.options.failures
        self._most_tries = 1 + failures.retries
        # Here they run again under keys and seeds of their own, and count once in all starts.
        again = [kind for kind in KINDS_WITH_POLICY if getattr(failures, kind) == "retry"]
        self._collector = Collector(
            self.journal.store,
            self.gateway,
            None,
            self._config,
            failures=replace(failures, **dict.fromkeys(again, "exclude"), stop_after=None),
        )

    @property
    def total(self) -> int:
        """Evaluations so far, each counted once."""
        return self.spent.total()

    @property
    def num_failed(self) -> int:
        """Those that were left out."""
        ended = (one for found in self.outcomes.values() for one in found.values())
        return sum(isinstance(one, NoScore) for one in ended)

    def task_at(self, split: Split, position: int) -> int:
        """Position in the dataset of the stream's task."""
        number = len(self.tasks[split])
        if split == "search" and not self.shuffled:
            return position % number
        turn = 0 if split == "held_out" else position // number
        order = list(range(number))
        random.Random(f"{self.options.seed}/{split}/{turn}").shuffle(order)
        return order[position % number]

    def known(self, candidate: Candidate, split: Split) -> list[Score]:
        """What is known of a candidate, by position."""
        return [one for one in self._of(candidate, split) if isinstance(one, Score)]

    def failed(self, candidate: Candidate, split: Split) -> list[NoScore]:
        """Its evaluations that were left out, by position."""
        return [one for one in self._of(candidate, split) if isinstance(one, NoScore)]

    def count(self, candidate: Candidate, split: Split) -> int:
        """How many evaluations of a candidate have ended."""
        return len(self._of(candidate, split))

    def is_broken(self, candidate: Candidate, split: Split) -> bool:
        """Whether so many of its evaluations failed that it cannot be judged.

        Two failures never are too many, but all are.
        """
        failed, done = len(self.failed(candidate, split)), self.count(candidate, split)
        share = self.options.failures.stop_after or 1.0
        return failed > max(2.0, share * done) or 0 < done == failed

    def why_broken(self, candidate: Candidate, split: Split) -> str:
        """How many of its evaluations failed, and why most of them did."""
        failed = self.failed(candidate, split)
        return (
            f"{len(failed)} of its {self.count(candidate, split)} evaluations failed, most often "
            f"with {most_frequent(failed)!r}"
        )

    def _of(self, candidate: Candidate, split: Split) -> list[Score | NoScore]:
        found = self.outcomes.get((candidate.candidate_id, split), {})
        return [found[position] for position in sorted(found)]

    async def extend(
        self, candidates: Sequence[Candidate], split: Split, positions: Sequence[int]
    ) -> None:
        """Evaluate all candidates at these positions; what is known is not evaluated again.

        Raises:
            AlgorithmError: An agent gave no reward; all of
                several candidates' evaluations failed; or the gateway's budget is spent.
        """
        wanted = [
            (candidate, position)
            for position in positions
            for candidate in candidates
            if position not in self.outcomes.get((candidate.candidate_id, split), {})
        ]
        if not wanted:
            return
        read: dict[tuple[Candidate, int], Score | NoScore] = {}
        tries = dict.fromkeys(wanted, 0)
        pending, number = wanted, 0
        while pending:
            over = await self._run(pending, split, number)
            read |= {place: self._read(one, split, place[1]) for place, one in over.items()}
            if self.is_budget_spent() and any(isinstance(one, NoScore) for one in read.values()):
                raise AlgorithmError(
                    f"the gateway's budget was spent after {self.total} evaluations, before there "
                    "was a decision; the prompts stay as they were"
                )
            for place, one in over.items():
                if isinstance(read[place], NoScore):
                    tries[place] += await self._count(one)
            pending = [
                place
                for place in pending
                if isinstance(read[place], NoScore) and tries[place] < self._most_tries
            ]
            number += 1
            self.again += len(pending)
        failed = [one for one in read.values() if isinstance(one, NoScore)]
        if len(failed) == len(read) and len({candidate for candidate, _ in read}) > 1:
            await self.stop(failed, f"all {len(failed)} evaluations of a batch failed")
        for (candidate, position), outcome in read.items():
            self.outcomes.setdefault((candidate.candidate_id, split), {})[position] = outcome
        self.spent[split] += len(wanted)
        self.show(self.total)

    async def require_success(self, candidate: Candidate, split: Split, hint: str = "") -> None:
        """Stop when the first prompt cannot be judged.

        Args:
            candidate: The first prompt.

        Raises:
            AlgorithmError: Too many of its evaluations failed; says why.
        """
        if self.is_broken(candidate, split):
            failed, count = self.failed(candidate, split), self.count(candidate, split)
            which = "all" if len(failed) == count else f"{len(failed)} of"
            await self.stop(failed, f"{which} {count} evaluations of the first prompt failed", hint)

    async def stop(self, failed: Sequence[NoScore], what: str, hint: str = "") -> NoReturn:
        """End the run; one that continues it runs these evaluations again.

        Args:
            failed: They are why.
            what: How many of what failed.
            hint: A sentence more, with a blank before it.

        Raises:
            AlgorithmError: Always; says what failed, how often, and most often why.
        """
        for one in failed:
            await self._note(one.rollout_id, {}, without=COUNTED)
        raise AlgorithmError(
            f"{self.options.title}: {what}, in up to {self._most_tries} runs "
            f"each, most often with {most_frequent(failed)!r}.{hint} Mend that and run again: it "
            "continues here"
        )

    async def _count(self, one: Ended) -> int:
        """As how many tries a failed evaluation counts; noted, so that it is not lost later on."""
        metadata = one.rollout.metadata or {}
        error = getattr(getattr(one.rollout, "attempt", None), "error", None)
        names = error.type.split(".") if error else [""]
        failures, known = self.options.failures, one.failed or RolloutFailure("grader", "")
        # Who waited in vain for a runner once need not do so twice more.
        is_last = one.is_late or (names[0] in CLIENTS and names[-1] in FINAL)
        is_last = is_last or not failures.runs_again(known)
        tries = metadata.get(COUNTED, self._most_tries if is_last else 1)
        await self._note(one.rollout.rollout_id, {COUNTED: tries})
        return tries

    async def _note(self, rollout_id: str, given: dict[str, Any], without: str = "") -> None:
        rollout = await self.journal.store.get_rollout_by_id(rollout_id)
        before = {} if rollout is None else rollout.metadata or {}
        metadata = {name: value for name, value in before.items() if name != without}
        if before != (now := {**metadata, **given}):
            await self.journal.store.update_rollout(rollout_id, metadata=now)

    async def _run(
        self, wanted: Sequence[tuple[Candidate, int]], split: Split, number: int
    ) -> dict[tuple[Candidate, int], Ended]:
        """What came of each."""
        ended = await self._collector.run(
            [self._request(*place, split, number) for place in wanted],
            self.options.rollout_batch_timeout,
        )
        if late := sum(one.is_late for one in ended):
            logger.warning(
                "%d of %d evaluations had not ended after rollout_batch_timeout=%s seconds; they "
                "are cancelled and left out. Are runners connected?",
                late,
                len(ended),
                self.options.rollout_batch_timeout,
            )
        return dict(zip(wanted, ended, strict=True))

    def _request(
        self, candidate: Candidate, position: int, split: Split, number: int
    ) -> EnqueueRolloutRequest:
        name, task = candidate.candidate_id, self.task_at(split, position)
        tried = [f"try-{number + 1}"] if number else []
        return EnqueueRolloutRequest(
            input=self.tasks[split][task],
            mode=MODES[split],
            resources_id=self.resources_ids[name],
            config=self._config,
            metadata={
                **self.start,
                **self.journal.metadata(
                    PromptRuns.EVALUATION,
                    candidate=name,
                    split=split,
                    position=position,
                    task=task,
                    again=number,
                ),
                SEED: seed_of(self.options.seed, name, split, position, number),
            },
            key=self.journal.key(PromptRuns.EVALUATION, name, split, position, *tried),
        )

    def _read(self, one: Ended, split: Split, position: int) -> Score | NoScore:
        task, (low, high) = self.task_at(split, position), self.options.reward_range
        rollout_id, why, reward = one.rollout.rollout_id, why_failed(one), one.reward
        if why is not None:
            return NoScore(position, task, rollout_id, why)
        if reward is None:
            raise AlgorithmError(
                f"rollout {rollout_id!r} succeeded without a reward; an agent whose prompts are to "
                "be optimised returns one, or calls agl.emit_reward"
            )
        if low <= reward <= high:
            return Score(position, task, rollout_id, (reward - low) / (high - low))
        why = (
            f"the reward {reward:g}, outside reward_range=({low:g}, {high:g}): the bounds of the "
            "statistics need the range that rewards really have"
        )
        return NoScore(position, task, rollout_id, why)


def why_failed(one: Ended) -> str | None:
    """Why an evaluation brought no reward that could be used; None if nothing says so."""
    if one.unusable is None:
        return one.problem
    if one.failed is None:
        return one.unusable[1]
    return f"{'infrastructure: ' if one.rollout.status == 'succeeded' else ''}{one.failed.why}"


def most_frequent(failed: Sequence[NoScore]) -> str:
    """The reason that most of them give."""
    return Counter(one.why for one in failed).most_common(1)[0][0]
