import math
import random
from typing import Any

import pytest

from agl.errors import ConfigError
from agl_apo.decision import Rule, decide
from agl_apo.evaluate import Candidate, Score
from agl_apo.statistics import (
    BETS,
    bounds,
    fewest_tasks,
    log_capital,
    lower_bound,
    pairs_needed,
)


def test_capital_is_the_mean_of_what_each_bet_made() -> None:
    # Two differences of 1 against a mean of 0: every bet b makes (1 + b)^2.
    expected = sum((1 + bet) ** 2 for bet in BETS) / len(BETS)
    assert math.exp(log_capital([1.0, 1.0], 0.0)) == pytest.approx(expected)
    # One of 0.5 against a mean of 0.25: the return is (0.5 - 0.25) / 1.25 = 0.2 of each bet.
    assert math.exp(log_capital([0.5], 0.25)) == pytest.approx(
        sum(1 + 0.2 * bet for bet in BETS) / len(BETS)
    )


def test_bound_is_where_the_capital_reaches_one_over_alpha() -> None:
    differences = [1.0] * 9 + [0.0] * 3
    low = lower_bound(differences, 0.025)
    assert 0 < low < 0.75
    assert log_capital(differences, low) == pytest.approx(math.log(40), abs=0.02)
    assert lower_bound([], 0.05) == -1.0
    assert bounds([-x for x in differences], 0.05) == pytest.approx(
        (-bounds(differences, 0.05)[1], -bounds(differences, 0.05)[0])
    )


def test_order_of_the_differences_does_not_matter() -> None:
    differences = [1.0, 0.0, -1.0, 1.0, 1.0, 0.5, 0.0, 1.0]
    assert bounds(differences, 0.05) == pytest.approx(bounds(sorted(differences), 0.05))


def test_bounds_hold_at_every_look_at_once() -> None:
    # 200 experiments with a true mean of 0.2, looked at after each of 60 pairs: the interval may
    # miss it in 5 % of them, at any look. 200 x 5 % = 10.
    rng, missed = random.Random(0), 0
    for _ in range(200):
        differences: list[float] = []
        for _ in range(60):
            differences.append(rng.choices([1.0, 0.0, -1.0], [0.4, 0.4, 0.2])[0])
            # Cheaper than the bounds themselves, and the same: is 0.2 ruled out from either side?
            high = log_capital(differences, 0.2) > 3.6889
            low = log_capital([-x for x in differences], -0.2) > 3.6889
            if high or low:
                missed += 1
                break
    assert missed <= 10


def test_plan_grows_as_the_gain_shrinks_and_never_below_a_perfect_outcome() -> None:
    assert fewest_tasks(0.05) == 8
    assert pairs_needed(0.1, 0.05) > pairs_needed(0.25, 0.05) > pairs_needed(0.5, 0.05)
    assert pairs_needed(0.99, 0.05) >= fewest_tasks(0.05)


class Coins:
    """Stands where ``Evaluator`` does: each evaluation is a coin of its own."""

    def __init__(self, chances: dict[str, list[float]], seed: int) -> None:
        self.chances = chances
        self.rng = random.Random(seed)
        self.tasks: dict[str, list[Any]] = {"held_out": next(iter(chances.values()))}
        self.scores: dict[str, list[Score]] = {name: [] for name in chances}

    async def extend(self, candidates: list[Candidate], split: str, positions: range) -> None:
        for candidate in candidates:
            name = candidate.candidate_id
            for position in positions[len(self.scores[name]) :]:
                task = random.Random(position).randrange(len(self.tasks[split]))
                reward = float(self.rng.random() < self.chances[name][task])
                self.scores[name].append(Score(position, task, "", reward))

    def known(self, candidate: Candidate, split: str) -> list[Score]:
        return self.scores[candidate.candidate_id]


async def decided(old: list[float], new: list[float], seed: int, rule: Rule) -> Any:
    coins: Any = Coins({"old": old, "new": new}, seed)
    return await decide(coins, Candidate("old", {}), Candidate("new", {}), rule)


async def test_identical_candidate_is_accepted_in_at_most_one_run_of_twenty() -> None:
    # 200 decisions over up to 87 pairs, looked at every four of them. At 2.5 % (the lower half
    # of the interval's 5 %) at most 5 are expected; 5 % would be 10.
    chances = [0.1, 0.5, 0.9] * 9 + [0.5, 0.5]
    rule = Rule(smallest_gain=0.05)
    outcomes = [await decided(chances, chances, seed, rule) for seed in range(200)]
    assert sum(outcome.accepted for outcome in outcomes) <= 5
    assert all(outcome.lower <= outcome.gain <= outcome.upper for outcome in outcomes)


async def test_better_candidate_is_accepted_with_few_pairs() -> None:
    outcomes = [await decided([0.2] * 29, [0.8] * 29, seed, Rule()) for seed in range(40)]
    assert sum(outcome.accepted for outcome in outcomes) >= 38
    assert sum(outcome.pairs for outcome in outcomes) / 40 < 29
    assert all(outcome.lower > 0 for outcome in outcomes if outcome.accepted)


async def test_decision_ends_when_the_gain_that_is_wanted_is_ruled_out() -> None:
    outcome = await decided([0.9] * 60, [0.1] * 60, 1, Rule())
    assert not outcome.accepted
    assert "ruled out" in outcome.reason
    assert outcome.pairs < 40


async def test_too_few_held_out_tasks_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(ConfigError, match=r"has 5 held-out tasks, .* that takes 8"):
        Rule().check(5)
    Rule().check(8)
