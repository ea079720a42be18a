"""Whether a challenger takes the seed's place, decided on tasks that the search never saw.

Pairs of evaluations, one of each prompt on the same task, are made a few at a time, and the bounds
of ``agl_apo.statistics`` are looked at after each few. The decision ends when the lower bound of
the gain is above zero (accepted), when the upper one is below the smallest gain that is worth
having, or when pairs or budget are used up (both: not accepted).

The task of each pair is drawn at random from all held-out tasks, whatever was drawn before. So the
pairs are independent, and the bounds are exact for the mean gain on the held-out tasks.

The search may have tried any number of candidates: one of them comes here, once per run, and the
held-out tasks had no part in choosing it. So no correction for their number is needed.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl_apo.evaluate import Score
from agl_apo.statistics import bounds, fewest_tasks, pairs_needed

if TYPE_CHECKING:
    from agl_apo.evaluate import Candidate, Evaluator


@dataclass(frozen=True)
class Rule:
    """When a challenger is accepted."""

    confidence: float = 0.95
    smallest_gain: float = 0.25
    """On the scale 0..1."""
    max_repeats: int = 3
    """Pairs at most, per held-out task."""
    look_every: int = 4
    """Pairs between two looks."""

    @property
    def alpha(self) -> float:
        """Chance that the interval misses the gain."""
        return 1.0 - self.confidence

    def pairs(self, num_tasks: int) -> int:
        """Pairs that are planned for."""
        return min(pairs_needed(self.smallest_gain, self.alpha), num_tasks * self.max_repeats)

    def check(self, num_tasks: int) -> None:
        """Refuse what cannot conclude.

        Raises:
            ConfigError: An option is out of range, or there are too few tasks.
        """
        for name, low, high in (("confidence", 0.0, 1.0), ("smallest_gain", 0.0, 1.0)):
            value = getattr(self, name)
            if not low < value < high:
                raise ConfigError(f"{name} must be between {low:g} and {high:g}; got {value}")
        for name in ("max_repeats", "look_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        needed = fewest_tasks(self.alpha)
        if num_tasks < needed:
            raise ConfigError(
                f"val_dataset has {num_tasks} held-out tasks, too few to say anything about others "
                f"at confidence={self.confidence:g}: that takes {needed}, if all goes perfectly. "
                f"Give at least {needed} tasks that are not in train_dataset"
            )


@dataclass(frozen=True)
class Decision:
    """What the held-out tasks say about a challenger; rewards are on the scale 0..1."""

    accepted: bool
    challenger: str
    seed_mean: float
    challenger_mean: float
    gain: float
    lower: float
    upper: float
    confidence: float
    pairs: int
    tasks: int
    """Different ones among the pairs."""
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


async def decide(
    evaluator: "Evaluator",
    seed: "Candidate",
    challenger: "Candidate",
    rule: Rule,
    max_pairs: int | None = None,
) -> Decision:
    """Run both on held-out tasks until it is decided.

    Args:
        evaluator: Has the tasks.
        seed: What is there.
        challenger: What would replace it.
        rule: When it does.
        max_pairs: What the budget allows; None for what is planned.
    """
    limit = rule.pairs(len(evaluator.tasks["held_out"]))
    if max_pairs is not None:
        limit = min(limit, max_pairs)
    done, lower, upper, reason = 0, -1.0, 1.0, "the planned pairs are used up"
    ours, theirs = list[Score](), list[Score]()
    while done < limit:
        done = min(done + rule.look_every, limit)
        await evaluator.extend([seed, challenger], "held_out", range(done))
        ours, theirs = (evaluator.known(one, "held_out")[:done] for one in (seed, challenger))
        differences = [new.reward - old.reward for old, new in zip(ours, theirs, strict=True)]
        lower, upper = bounds(differences, rule.alpha, (lower, upper))
        if lower > 0:
            reason = "the lower bound of the gain is above zero"
            break
        if upper < rule.smallest_gain:
            reason = f"a gain of smallest_gain={rule.smallest_gain:g} is ruled out"
            break
    means = [sum(score.reward for score in scores) / max(1, done) for scores in (ours, theirs)]
    return Decision(
        accepted=lower > 0,
        challenger=challenger.candidate_id,
        seed_mean=means[0],
        challenger_mean=means[1],
        gain=means[1] - means[0],
        lower=lower,
        upper=max(lower, upper),
        confidence=rule.confidence,
        pairs=done,
        tasks=len({score.task for score in ours}),
        reason=reason,
    )
