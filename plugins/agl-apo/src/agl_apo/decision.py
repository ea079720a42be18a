"""Whether a challenger takes the seed's place, decided on tasks that the search never saw.

The held-out tasks are a sample of the tasks that will come, and the claim is about those. So the
unit is the task: each brings one difference, challenger minus seed, of a pair of evaluations, and
the differences of tasks that were drawn independently are independent. The tasks come in a random
order, each once, a few at a time, and the bounds of ``agl_apo.statistics`` are looked at after each
few. Where there are too few tasks for the planned number of pairs, all of them are run again (up to
``max_repeats`` times), and at the end there is one more look, at the mean difference of each task:
that takes away what is chance within a task, and none of the chance in which tasks there are.

The decision ends when the lower bound of the gain is above zero (accepted), when the upper one is
below the smallest gain that is worth having, or when pairs or budget are used up (both: not
accepted).

What holds, for new tasks of the kind that was sampled, and for an agent that does as it did: the
interval misses the mean gain with a chance of at most 1 - confidence, over all looks together. The
looks of the first pass share one supermartingale; the one at the end is another, so each has half
of that chance. A lower bound is wrong in half of it at most: a challenger whose mean gain over new
tasks is zero or less is accepted with a chance of at most (1 - confidence) / 2. About the held-out
tasks themselves nothing more is said than about others; their own mean gain may well be greater.

A pair of which an evaluation failed is left out, so all of this is about tasks on which neither
fails. A challenger of which too many fail is not accepted.

The search may have tried any number of candidates: one of them comes here, once per run, and the
held-out tasks had no part in choosing it. So no correction for their number is needed.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agl.errors import ConfigError
from agl_apo.evaluate import Candidate, Evaluator
from agl_apo.statistics import bounds, fewest_tasks, pairs_needed


@dataclass(frozen=True)
class Rule:
    """When a challenger is accepted."""

    confidence: float = 0.95
    smallest_gain: float = 0.25
    """On the scale 0..1."""
    max_repeats: int = 3
    """Pairs at most, per held-out task; their mean counts once."""
    look_every: int = 4
    """Pairs between two looks of the first pass."""

    @property
    def alpha(self) -> float:
        """Chance that the interval misses the gain."""
        return 1.0 - self.confidence

    def passes(self, num_tasks: int) -> int:
        """How often each held-out task is run: so that the pairs are about those that it takes."""
        wanted = pairs_needed(self.smallest_gain, self.alpha / 2) / max(1, num_tasks)
        return max(1, min(self.max_repeats, math.floor(wanted + 0.5)))

    def pairs(self, num_tasks: int) -> int:
        """Pairs that are planned for."""
        passes = self.passes(num_tasks)
        if passes > 1:
            return passes * num_tasks
        return min(pairs_needed(self.smallest_gain, self.alpha), num_tasks)

    def check(self, num_tasks: int) -> None:
        """Refuse what cannot conclude."""
        needed = fewest_tasks(self.alpha / 2 if self.passes(num_tasks) > 1 else self.alpha)
        if num_tasks < needed:
            raise ConfigError(
                f"val_dataset has {num_tasks} held-out tasks, too few to say anything about new "
                f"tasks at confidence={self.confidence:g}: that takes {needed}, if the new prompt "
                "wins each of them by the whole range of rewards, and some 30 for a gain of a "
                f"third of it. Give at least {needed} tasks that are not in train_dataset"
            )


@dataclass(frozen=True)
class Decision:
    """What the held-out tasks say; rewards are on the scale 0..1, means over tasks."""

    accepted: bool
    challenger: str
    seed_mean: float
    challenger_mean: float
    gain: float
    lower: float
    upper: float
    confidence: float
    pairs: int
    """That were run."""
    left_out: int
    """Pairs of which an evaluation failed; they are in no other number."""
    tasks: int
    """That the interval is made of, each of which counts once."""
    reason: str

    @property
    def verdict(self) -> str:
        """All of it that a reader wants, in a line."""
        return (
            f"{self.challenger} {'accepted' if self.accepted else 'not accepted, the seed stays'}: "
            f"mean reward {self.challenger_mean:.3f} instead of {self.seed_mean:.3f} on "
            f"{self.tasks} held-out tasks; gain {self.gain:+.3f}, {100 * self.confidence:.0f} % "
            f"interval {self.lower:+.3f} to {self.upper:+.3f} ({self.reason}); {self.pairs} pairs, "
            f"{self.left_out} of them left out"
        )

    def metrics(self, step: int) -> dict[str, Any]:
        """What trackers get, after so many rounds."""
        return {
            "step": step,
            # Of what the run ends with, as everywhere else.
            "val/reward/mean": self.challenger_mean if self.accepted else self.seed_mean,
            "val/reward/challenger": self.challenger_mean,
            "val/reward/seed": self.seed_mean,
            "val/gain": self.gain,
            "val/gain/lower": self.lower,
            "val/gain/upper": self.upper,
            "val/tasks": self.tasks,
        }


async def decide(
    evaluator: Evaluator,
    seed: Candidate,
    challenger: Candidate,
    rule: Rule,
    max_pairs: int | None = None,
) -> Decision:
    """Run both on held-out tasks until it is decided.

    Args:
        max_pairs: What the budget allows; None for what is planned.

    Raises:
        AlgorithmError: Too many evaluations of the seed failed.
    """
    num_tasks = len(evaluator.tasks["held_out"])
    limit = rule.pairs(num_tasks)
    if max_pairs is not None:
        limit = min(limit, max_pairs)
    # Each look's own share of the chance to be wrong: see the module's docstring.
    alpha = rule.alpha / 2 if limit > num_tasks else rule.alpha
    done, lower, upper, reason = 0, -1.0, 1.0, "the planned pairs are used up"
    while done < limit and lower <= 0:
        done = min(done + rule.look_every, limit if done >= num_tasks else min(limit, num_tasks))
        await evaluator.extend([seed, challenger], "held_out", range(done))
        if evaluator.is_broken(challenger, "held_out") or evaluator.is_broken(seed, "held_out"):
            break
        if num_tasks < done < limit:
            continue
        differences = [new - old for old, new in _means(_by_task(evaluator, seed, challenger))]
        lower, upper = bounds(differences, alpha, (lower, upper))
        if upper < rule.smallest_gain:
            break
    await evaluator.require_success(seed, "held_out")
    broken = evaluator.is_broken(challenger, "held_out")
    if broken:
        reason = evaluator.why_broken(challenger, "held_out")
    elif lower > 0:
        reason = "the lower bound of the gain is above zero"
    elif upper < rule.smallest_gain:
        reason = f"a gain of smallest_gain={rule.smallest_gain:g} is ruled out"
    pairs = _by_task(evaluator, seed, challenger)
    means = _means(pairs)
    old, new = map(fmean, zip(*means, strict=True)) if means else (0.0, 0.0)
    return Decision(
        accepted=lower > 0 and not broken,
        challenger=challenger.candidate_id,
        seed_mean=old,
        challenger_mean=new,
        gain=new - old,
        lower=lower,
        upper=max(lower, upper),
        confidence=rule.confidence,
        pairs=done,
        left_out=done - sum(map(len, pairs)),
        tasks=len(pairs),
        reason=reason,
    )


def _by_task(
    evaluator: Evaluator, seed: Candidate, challenger: Candidate
) -> list[list[tuple[float, float]]]:
    """Per task, the rewards of seed and challenger at each position at which both have one."""
    theirs = {score.position: score.reward for score in evaluator.known(challenger, "held_out")}
    pairs: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for score in evaluator.known(seed, "held_out"):
        if score.position in theirs:
            pairs[score.task].append((score.reward, theirs[score.position]))
    return list(pairs.values())


def _means(pairs: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Per task the means of seed and challenger."""
    return [(fmean(old for old, _ in each), fmean(new for _, new in each)) for each in pairs]
