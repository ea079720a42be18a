"""The race of a search: many candidates get few evaluations, and few get many.

A new candidate runs the first ``step`` tasks of the stream. Then the most promising candidates, new
and old, run ``step`` more each, until the round's share of evaluations is used. Most promising is
who has the highest value plus uncertainty; the leader is who has the highest value minus
uncertainty, and the next beam is the leader and the highest values besides:

    value        m + (sum of (reward - task) + k (parents - m)) / (n + k)
    uncertainty  sqrt(1 / (8 (n + 1)))

with n the evaluations of the candidate that did not fail, m the mean of all rewards so far,
``task`` the mean reward of that task over all candidates (drawn to m by k pseudo-evaluations), and
``parents`` the mean of those that were edited this round. So a prompt is compared with others on
the same tasks, one that was lucky three times is drawn back to where its parents are, and no
candidate is lost for good, but for those of which too many evaluations failed
(``agl_apo.evaluate``).

Source: upper confidence bounds, P. Auer, N. Cesa-Bianchi and P. Fischer, "Finite-time analysis of
the multiarmed bandit problem" (2002). Where we differ: the task's mean is taken off (a control
variate), and the uncertainty has no logarithm of the time, since a race is short. What the race
finds is only a leader; whether it is better is for ``agl_apo.decision`` to say.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from agl_apo.evaluate import Candidate, Evaluator

logger = logging.getLogger("agl.apo")

PSEUDO = 8.0
"""k: evaluations that a candidate must bring before its own rewards outweigh its parents'."""


@dataclass(frozen=True)
class Sizes:
    """How much a race takes."""

    width: int
    """How many candidates are wanted, and run at a time."""
    step: int
    """Evaluations at a time of one candidate."""
    share: int
    """Evaluations of a round after those that each new candidate gets."""

    def cost(self, num_new: int) -> int:
        """Most evaluations that a race can take."""
        return num_new * self.step + self.share + self.width * self.step


async def race(
    evaluator: Evaluator,
    candidates: Sequence[Candidate],
    parents: Sequence[Candidate],
    sizes: Sizes,
) -> list[Candidate]:
    """The best candidates, best first; none where no candidate can be judged any more.

    Args:
        candidates: All of the run that can be judged, by age; of equal ones the older wins.
        parents: Those that this round's candidates were made of.
    """
    await evaluator.extend(candidates, "search", range(sizes.step))
    candidates = _working(evaluator, candidates)
    begun = evaluator.total
    while candidates and evaluator.total - begun < sizes.share:
        value, doubt = values(evaluator, candidates, parents), doubts(evaluator, candidates)
        chosen = sorted(candidates, key=lambda one: -(value[one] + doubt[one]))[: sizes.width]
        for length in sorted({evaluator.count(one, "search") for one in chosen}):
            alike = [one for one in chosen if evaluator.count(one, "search") == length]
            await evaluator.extend(alike, "search", range(length, length + sizes.step))
        candidates = _working(evaluator, candidates)
    if not candidates:
        return []
    value, doubt = values(evaluator, candidates, parents), doubts(evaluator, candidates)
    leader = max(candidates, key=lambda one: value[one] - doubt[one])
    others = sorted((one for one in candidates if one is not leader), key=lambda one: -value[one])
    return [leader, *others][: sizes.width]


def doubts(evaluator: Evaluator, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
    """The uncertainty of each value; see the module's docstring."""
    return {one: math.sqrt(0.125 / (1 + len(evaluator.known(one, "search")))) for one in candidates}


def values(
    evaluator: Evaluator, candidates: Sequence[Candidate], parents: Sequence[Candidate]
) -> dict[Candidate, float]:
    """What each is thought to be worth; see the module's docstring."""
    of_task: defaultdict[int, list[float]] = defaultdict(list)
    for candidate in candidates:
        for score in evaluator.known(candidate, "search"):
            of_task[score.task].append(score.reward)
    every = [reward for rewards in of_task.values() for reward in rewards]
    mean = fmean(every)
    task_mean = {
        task: (math.fsum(rewards) + PSEUDO * mean) / (len(rewards) + PSEUDO)
        for task, rewards in of_task.items()
    }
    of_parents = fmean(
        fmean(score.reward for score in evaluator.known(parent, "search")) for parent in parents
    )
    pull = PSEUDO * (of_parents - mean)
    result: dict[Candidate, float] = {}
    for candidate in candidates:
        scores = evaluator.known(candidate, "search")
        surplus = math.fsum(score.reward - task_mean[score.task] for score in scores)
        result[candidate] = mean + (surplus + pull) / (len(scores) + PSEUDO)
    return result


def _working(evaluator: Evaluator, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can be judged; says which cannot."""
    for one in candidates:
        if evaluator.is_broken(one, "search"):
            why = evaluator.why_broken(one, "search")
            logger.warning("candidate %s is out of the race: %s", one.candidate_id, why)
    return [one for one in candidates if not evaluator.is_broken(one, "search")]
