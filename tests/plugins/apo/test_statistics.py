import math
import random
from collections.abc import Sequence

import pytest

from agl import InMemoryLightningStore
from agl.errors import AlgorithmError, ConfigError
from agl_apo.decision import Decision, Rule, decide
from agl_apo.evaluate import Candidate, Evaluator, NoScore, Score, Split
from agl_apo.journal import StoreJournal
from agl_apo.options import PromptOptions
from agl_apo.race import doubts, values
from agl_apo.statistics import BETS, bounds, fewest_tasks, log_capital, lower_bound, pairs_needed


def test_capital_is_the_mean_of_what_each_bet_made() -> None:
    # Two differences of 1 against a mean of 0: every bet b makes (1 + b)^2.
    expected = sum((1 + bet) ** 2 for bet in BETS) / len(BETS)
    assert math.exp(log_capital([1.0, 1.0], 0.0)) == pytest.approx(expected)
    # One of 0.5 against a mean of 0.25: the return is (0.5 - 0.25) / 1.25 = 0.2 of each bet.
    expected = sum(1 + 0.2 * bet for bet in BETS) / len(BETS)
    assert math.exp(log_capital([0.5], 0.25)) == pytest.approx(expected)


def test_bound_is_where_the_capital_reaches_one_over_alpha() -> None:
    differences = [1.0] * 9 + [0.0] * 3
    low = lower_bound(differences, 0.025)
    assert 0 < low < 0.75
    assert log_capital(differences, low) == pytest.approx(math.log(40), abs=0.02)
    assert lower_bound([], 0.05) == -1.0
    least, most = bounds(differences, 0.05)
    assert bounds([-x for x in differences], 0.05) == pytest.approx((-most, -least))


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


class Played(Evaluator):
    """Plays its evaluations itself, without a store; of ``failing`` tasks they fail.

    ``draw`` makes a task: the chances of the old and of the new prompt to get a reward of 1.
    """

    def __init__(self, draw, num_tasks, seed, failing=None):
        self.rng, self.failing = random.Random(seed), failing or {}
        tasks = [draw(self.rng) for _ in range(num_tasks)]
        journal = StoreJournal(InMemoryLightningStore(), "run", "apo")
        super().__init__(journal, {"search": [], "held_out": tasks}, PromptOptions(seed=seed))

    async def extend(self, candidates: Sequence[Candidate], split: Split, positions: Sequence[int]):
        for candidate in candidates:
            name = candidate.candidate_id
            found = self.outcomes.setdefault((name, split), {})
            for position in positions:
                if position in found:
                    continue
                task = self.task_at(split, position)
                chance = self.tasks[split][task][("old", "new").index(name)]
                if task in self.failing.get(name, ()):
                    found[position] = NoScore(position, task, "ro", "agent: OSError: no")
                else:
                    found[position] = Score(position, task, "ro", float(self.rng.random() < chance))


async def decided(played: Played, rule: Rule | None = None) -> Decision:
    return await decide(played, OLD, NEW, rule or Rule())


OLD, NEW = Candidate("old", {}), Candidate("new", {})


def better_or_worse(rng: random.Random) -> tuple[float, float]:
    """The new prompt wins half of all tasks for sure, and loses the others: a mean gain of 0."""
    return rng.choice([(0.0, 1.0), (1.0, 0.0)])


def mostly(rng: random.Random) -> tuple[float, float]:
    """It is chance within a task, and mostly so: a mean gain of 0, too."""
    return rng.choice([(0.1, 0.9), (0.9, 0.1), (0.5, 0.5)])


@pytest.mark.parametrize("draw", [better_or_worse, mostly])
@pytest.mark.parametrize("num_tasks", [9, 16, 30])
async def test_no_gain_over_new_tasks_is_accepted_as_rarely_as_promised(draw, num_tasks) -> None:
    # 2.5 % of 100 runs are 2.5 acceptances; with tasks drawn again and again there were 8 to 10.
    runs = [await decided(Played(draw, num_tasks, seed)) for seed in range(100)]
    assert sum(run.accepted for run in runs) <= 4
    # The interval is about new tasks, too: 5 % of 100.
    assert sum(run.lower > 0 or run.upper < 0 for run in runs) <= 5


async def test_a_task_is_held_against_a_prompt_once_however_often_it_is_run() -> None:
    played = Played(lambda rng: (0.0, 1.0), 9, 0)
    rule = Rule(smallest_gain=0.3)
    assert rule.pairs(9) == 27  # each task three times
    [*first_pass] = (played.task_at("held_out", position) for position in range(9))
    assert sorted(first_pass) == list(range(9))
    assert [played.task_at("held_out", position) for position in range(9, 27)] == first_pass * 2
    # Nine certain wins exclude zero at half of 5 %, at once.
    run = await decided(played, rule)
    assert (run.accepted, run.pairs, run.tasks) == (True, 9, 9)
    # At the end there is one look, at what bounds() says of the means of nine tasks.
    half = Played(lambda rng: (0.0, 0.5), 9, 0)
    run = await decided(half, rule)
    won = [score.reward for score in half.known(NEW, "held_out")]
    of_tasks = [sum(won[n::9]) / 3 for n in range(9)]
    assert (run.pairs, run.tasks) == (27, 9)
    assert run.gain == pytest.approx(sum(of_tasks) / 9)
    assert not run.accepted
    assert run.lower >= bounds(of_tasks, 0.025)[0]


async def test_better_candidate_is_accepted_with_few_pairs() -> None:
    runs = [await decided(Played(lambda rng: (0.2, 0.8), 29, seed)) for seed in range(40)]
    assert sum(run.accepted for run in runs) >= 38
    assert sum(run.pairs for run in runs) / 40 < 29
    assert all(run.lower > 0 for run in runs if run.accepted)
    assert all(run.lower <= run.gain <= run.upper for run in runs)


async def test_decision_ends_when_the_gain_that_is_wanted_is_ruled_out() -> None:
    run = await decided(Played(lambda rng: (0.9, 0.1), 60, 1))
    assert not run.accepted
    assert "ruled out" in run.reason
    assert run.pairs < 40


async def test_pairs_with_a_failed_evaluation_are_left_out_and_counted() -> None:
    played = Played(lambda rng: (0.0, 1.0), 20, 3, {"new": {0, 5}, "old": {5}})
    run = await decided(played, Rule(look_every=20))
    assert (run.pairs, run.left_out, run.tasks) == (20, 2, 18)
    assert (run.seed_mean, run.challenger_mean, run.gain) == (0.0, 1.0, 1.0)
    assert run.accepted


async def test_challenger_that_fails_too_often_is_not_accepted_whatever_the_others_say() -> None:
    played = Played(lambda rng: (0.0, 1.0), 20, 3, {"new": {0, 1, 2, 3, 4}})
    run = await decided(played, Rule(look_every=20))
    assert not run.accepted
    assert run.reason == "5 of its 20 evaluations failed, most often with 'agent: OSError: no'"


async def test_seed_that_fails_too_often_stops_the_run() -> None:
    played = Played(lambda rng: (0.0, 1.0), 20, 3, {"old": {0, 1, 2, 3, 4}})
    with pytest.raises(AlgorithmError, match=r"5 of 20 evaluations of the first prompt failed"):
        await decided(played, Rule(look_every=20))


def test_too_few_held_out_tasks_are_refused_with_the_number_that_would_do() -> None:
    # Eight perfect outcomes exclude zero at 5 %; with repeats a look has half of it, and takes 9.
    with pytest.raises(ConfigError, match=r"has 5 held-out tasks, .* new tasks .* that takes 9"):
        Rule().check(5)
    Rule().check(9)
    with pytest.raises(ConfigError, match="takes 8"):
        Rule(max_repeats=1).check(7)
    with pytest.raises(ConfigError, match=r"has 0 held-out tasks, .* not in train_dataset"):
        Rule().check(0)  # all of val_dataset is in train_dataset, too


def test_tasks_are_repeated_only_where_there_are_too_few_for_the_plan() -> None:
    # A gain of 0.25 takes 71 pairs, 80 at half of 5 %: 80/200, 80/60, 80/40 and 80/20 passes.
    rule = Rule()
    found = [(rule.passes(n), rule.pairs(n)) for n in (200, 60, 40, 20)]
    assert found == [(1, 71), (1, 60), (2, 80), (3, 60)]


def test_value_and_doubt_of_a_race_are_those_of_the_formula() -> None:
    played = Played(lambda rng: (0.5, 0.5), 1, 0)
    rewards = {OLD: [1.0, 0.0], NEW: [1.0]}
    for one, given in rewards.items():
        played.outcomes[one.candidate_id, "search"] = {
            number: Score(number, number, "ro", reward) for number, reward in enumerate(given)
        }
    # m = (1 + 0 + 1) / 3 = 2/3, k = 8. Task 0: (1 + 1 + 8 * 2/3) / (2 + 8) = 22/30;
    # task 1: (0 + 8 * 2/3) / (1 + 8) = 16/27. The parent is OLD, with a mean of 1/2:
    # k (parents - m) = 8 * (1/2 - 2/3) = -4/3.
    # OLD: 2/3 + ((1 - 22/30) + (0 - 16/27) - 4/3) / (2 + 8)
    # NEW: 2/3 + ((1 - 22/30) - 4/3) / (1 + 8)
    value = values(played, [OLD, NEW], [OLD])
    assert value[OLD] == pytest.approx(2 / 3 + (8 / 30 - 16 / 27 - 4 / 3) / 10)
    assert value[NEW] == pytest.approx(2 / 3 + (8 / 30 - 4 / 3) / 9)
    assert value[OLD] == pytest.approx(0.5007407)
    assert value[NEW] == pytest.approx(0.5481481)
    # sqrt(1 / (8 * 3)) and sqrt(1 / (8 * 2)); what failed does not count.
    played.outcomes["new", "search"][1] = NoScore(1, 1, "ro", "agent: OSError: no")
    doubt = doubts(played, [OLD, NEW])
    assert doubt[OLD] == pytest.approx(0.2041241)
    assert doubt[NEW] == pytest.approx(0.25)
    assert values(played, [OLD, NEW], [OLD]) == value
