"""What each call counts by each estimator, and which options are refused; by hand."""

import math
import sys
import types
from dataclasses import replace

import pytest
from tests.interpreter import python

import agl_learning
from agl.errors import ConfigError
from agl_learning.advantages.estimator_option import (
    ADVANTAGES,
    OF_TOKENS,
    Foreseen,
    describe_estimator,
)
from agl_learning.advantages.weighing import WeighingOptions, check_weighing, weigh
from agl_records.types import Credit, StepCredit

pytestmark = pytest.mark.plugins
TOKENS = {"a": 3, "b": 1, "c": 2, "d": 1, "e": 3}
REWARDS = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0, "e": 0.0}
RIGHT = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0, "e": 1.0}


@pytest.fixture
def own(monkeypatch):
    """A module of one's own."""
    monkeypatch.setitem(sys.modules, "own", module := types.ModuleType("own"))
    return module


@pytest.fixture
def batch(collected, ended):
    """Siblings a, b, c and d, e with as many sampled tokens; a has two calls, and x failed."""
    pytest.importorskip("torch")

    def build(**changed):
        rewards = {**REWARDS, **changed}

        def one(name, group, *answers):
            calls = [([1, 2], [7] * sampled, rewards[name]) for sampled in answers]
            dimensions = {"all": rewards[name], "right": RIGHT[name]}
            return replace(ended(name, group, calls), rewards=dimensions)

        failed = ended("x", 1, [([1], [5], 9.0)], status="failed")
        first = one("a", 0, 1, 2), one("b", 0, 1), one("c", 0, 2)
        return collected(*first, one("d", 1, 1), one("e", 1, 3), failed)

    return build


def values(batch, **options):
    """The advantages of each rollout's calls; None where they train nothing."""
    weighed = weigh(batch, WeighingOptions(**options))
    batch.ledger.check()
    return {one.row.rollout_id: [each.value for each in one.advantages] for one in weighed}


def whitened(found):
    """Of one value per rollout; rollouts weigh the same, their tokens share that."""
    mean = sum(found.values()) / len(found)
    squares = sum(1 / (tokens * len(found) ** 2) for tokens in TOKENS.values())
    variance = sum((one - mean) ** 2 for one in found.values()) / len(found) / (1 - squares)
    return {name: (one - mean) / math.sqrt(variance + 1e-8) for name, one in found.items()}


DISTANCES = {"a": 2 / 3, "b": -1 / 3, "c": -1 / 3, "d": 1 / 2, "e": -1 / 2}
# Deviations with n - 1: of 1, 0, 0 and of 0, 1, 1 the root of 1/3, of 1, 0 that of 1/2.
THREE, TWO = 1 / (math.sqrt(1 / 3) + 1e-6), 1 / (math.sqrt(1 / 2) + 1e-6)
OF_ALL = {"a": 2 / 3 * THREE, "b": -THREE / 3, "c": -THREE / 3, "d": TWO / 2, "e": -TWO / 2}
OF_RIGHT = {"a": THREE / 3, "b": -2 / 3 * THREE, "c": THREE / 3, "d": -TWO / 2, "e": TWO / 2}
EXPECTED = {
    "grpo": OF_ALL,
    "rloo": {"a": 1, "b": -0.5, "c": -0.5, "d": 1, "e": -1},
    # 3 of 6 sampled tokens have the reward 1, and 1 of 4.
    "opo": {"a": 0.5, "b": -0.5, "c": -0.5, "d": 0.75, "e": -0.25},
    # 2 of 5 rollouts have a reward.
    "gpg": {name: 2.5 * one for name, one in DISTANCES.items()},
    "grpo_passk": {"a": THREE, "d": TWO},
    "reinforce_plus_plus": whitened(REWARDS),
    "reinforce_plus_plus_baseline": whitened(DISTANCES),
    "gdpo": whitened({name: OF_ALL[name] + 0.5 * OF_RIGHT[name] for name in TOKENS}),
}


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_each_call_has_the_advantage_of_its_rollout(batch, name):
    rewards = {"all": 1, "right": 0.5} if name == "gdpo" else None
    found = values(given := batch(), estimator={"type": name, "rewards": rewards})
    assert {each: one[0] for each, one in found.items()} == pytest.approx(EXPECTED[name])
    assert len(found["a"]) == 2
    assert len(set(found["a"])) == 1
    left_out = {"zero_advantage": 3} if name == "grpo_passk" else {}
    assert given.ledger.reasons() == {"failed_attempt": 1, **left_out}
    for each in (*given.ledger.trained, *given.ledger.exclusions):
        if each.advantage is not None and name != "grpo":
            assert each.advantage.because.startswith(f"{name} ({ADVANTAGES[name]}); its reward: ")


def test_what_is_no_advantage_says_by_which_estimator(batch):
    given = batch(a=0.0)
    assert set(values(given, estimator="rloo")) == {"d", "e"}
    (detail,) = {e.detail for e in given.ledger.exclusions if e.reason == "zero_advantage"}
    assert detail == (
        "its advantage is zero: rloo (the distance from the mean of the others); its reward: 0 "
        "against mean 0, std 0 of 3 rollouts"
    )


def test_calls_that_credit_tells_apart_are_compared_with_their_own_kind(batch):
    def credited():
        given = batch()
        first, second = given.ended[0].rows[0], given.ended[1].rows[0]
        first.credits = [
            Credit(reward=0.5, group="one", step=StepCredit(group="s", reward=3.0, weight=2.0)),
            Credit(reward=4.0, group="two"),
        ]
        step = StepCredit(group="s", reward=1.0, weight=2.0)
        second.credits = [Credit(reward=0.0, group="one", step=step)]
        return given

    found = values(credited(), estimator="rloo")
    # 0.5 against 0, and twice 3 against 1; the second call has nothing to be compared with.
    assert found["a"] == [0.5 + 2 * 2]
    assert found["b"] == [-0.5 - 2 * 2]
    with pytest.raises(ConfigError, match="'grpo_passk' takes the reward of whole rollouts"):
        values(credited(), estimator="grpo_passk")


def test_a_rollout_has_a_reward_for_gpg_where_any_of_its_calls_has_one(batch):
    given = batch(a=0.0, d=0.0)
    given.ended[0].rows[0].credits = [Credit(reward=2.0), Credit(reward=0.0)]
    # The first call of a alone has a reward: 1 of 5 rollouts. The mean of a is 1, of three 1/3.
    found = values(given, estimator="gpg")
    assert found["a"] == pytest.approx([5 * (2 - 1 / 3), -5 / 3])
    assert found["b"] == pytest.approx([-5 / 3])
    given = batch(a=0.0, d=0.0)
    for one in given.ended[:2]:
        one.rows[0].credits = [Credit(reward=2.0), Credit(reward=0.0)][: len(one.rows[0].credits)]
    # Now two of 5 have one, and the mean is that of 1, 2 and 0.
    assert values(given, estimator="gpg")["c"] == pytest.approx([-2.5])


def test_equal_siblings_have_an_advantage_where_the_whole_step_is_compared(batch):
    given = batch(a=0.0, d=1.0, e=1.0)
    found = values(given, estimator="reinforce_plus_plus")
    assert {name: math.copysign(1, one[0]) for name, one in found.items()} == {
        "a": -1, "b": -1, "c": -1, "d": 1, "e": 1,
    }  # fmt: skip
    assert values(batch(a=0.0, d=1.0, e=1.0), estimator="reinforce_plus_plus_baseline") == {}


def test_single_rollouts_are_solved_where_the_whole_step_is_compared(collected, ended):
    pytest.importorskip("torch")
    for name, solved in (("reinforce_plus_plus", True), ("rloo", False)):
        options = WeighingOptions(estimator=name)
        for second, trained in ((1.0, 0), (0.0, 2)):
            given = collected(ended("a", 0, [([1], [7], 1.0)]), ended("b", 1, [([1], [7], second)]))
            assert len(weigh(given, options)) == (trained if solved else 0)
            assert (options.idle_reason(given) == "solved") == (solved and not trained)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((1.0, 1.0, 1.0), "solved"),
        ((0.1 + 0.2, 0.3, 0.3), "solved"),
        ((1.0, 1.0, 0.0), "draw"),
        ((-1.0, 0.0, 0.0), "draw"),
        ((1.0, 0.0, 0.0), ""),  # trains
    ],
)
def test_two_best_siblings_are_no_end_of_learning(collected, ended, rewards, reason):
    pytest.importorskip("torch")
    options = WeighingOptions(estimator="grpo_passk")
    given = collected(*(ended(str(n), 0, [([1], [5], reward)]) for n, reward in enumerate(rewards)))
    weigh(given, options)
    assert options.idle_reason(given) == reason


def test_equal_siblings_are_not_solved_where_one_lacks_a_dimension(collected, ended):
    pytest.importorskip("torch")
    options = WeighingOptions(estimator={"type": "gdpo", "rewards": {"right": 1}})
    whole = [replace(ended(name, 0, [([1], [5], 1.0)]), rewards={"right": 1.0}) for name in "abc"]
    weigh(given := collected(*whole), options)
    assert options.idle_reason(given) == "solved"
    weigh(given := collected(*whole, ended("d", 0, [([1], [5], 1.0)])), options)
    assert options.idle_reason(given) == ""


def test_a_dimension_that_nobody_has_is_named(batch):
    options = WeighingOptions(estimator={"type": "gdpo", "rewards": {"all": 1, "rihgt": 1}})
    with pytest.raises(ConfigError, match=r"a reward 'rihgt'; they have all, right\."):
        weigh(batch(), options)


def test_a_rollout_without_the_dimensions_is_excluded_and_its_siblings_are_not(batch):
    given = batch()
    given.ended[1].rewards = {"all": 0.0}
    found = values(given, estimator={"type": "gdpo", "rewards": {"all": 1, "right": 1}})
    assert set(found) >= {"a", "c"}
    (one,) = [each for each in given.ledger.exclusions if each.reason == "no_reward"]
    assert one.rollout_id == "b"
    assert one.detail == "its reward has no 'right', which rewards names; it has all"


def test_nothing_that_is_usable_is_nothing_to_estimate(collected, ended):
    pytest.importorskip("torch")
    given = collected(ended("x", 1, [([1], [5], 9.0)], status="failed"))
    assert values(given, estimator="rloo") == {}


def test_an_estimator_of_ones_own_says_what_it_is_and_is_held_to_its_shape(batch, own):
    own.distance = lambda inputs: inputs.rollouts.mask_NT * (inputs.outcomes_N - 0.25)[:, None]
    own.distance.__doc__ = "The distance from 0.25.\n\nOf all."
    given = WeighingOptions(estimator="own:distance")
    check_weighing("Mine", given)
    (first, *_) = weigh(batch(), given)
    assert [each.value for each in first.advantages] == [0.75, 0.75]
    assert first.advantages[0].because == "own:distance (The distance from 0.25); its reward: 1"
    assert first.advantages[0].estimator == "own:distance"
    given.check_copies("Mine", group_size=1)  # it may look at the whole step


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda it: it.outcomes_N, r"for each token, .* of \(5, 3\) .* got \(5,\)"),
        (lambda it: it.penalties_NT.tolist(), r"of \(5, 3\) .* got list"),
        (lambda it: it.penalties_NT / 0, r"of 5 of 5 rollouts are not finite, of 'a' for one"),
        (
            lambda it: agl_learning.compared(it, lambda group: [[1.0]]),
            r"a number per entry, \[2, 1, 1\] of them; got \[\[1.0\]\]",
        ),
    ],
)
def test_what_an_estimator_of_ones_own_gives_is_checked(batch, own, wrong, message):
    own.wrong = wrong
    with pytest.raises(ConfigError, match=message):
        weigh(batch(), WeighingOptions(estimator="own:wrong"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: 1, "expected a function of one argument"),
        (dict, "no function"),
        ("text", "no function"),
    ],
)
def test_what_is_no_function_of_the_inputs_is_refused(own, wrong, message):
    own.wrong = wrong
    with pytest.raises(ConfigError, match=f"Mine: estimator 'own:wrong'.*{message}"):
        check_weighing("Mine", WeighingOptions(estimator="own:wrong"))


def test_where_calls_have_rewards_of_their_own_a_rollout_has_no_outcome(batch, own):
    own.of_outcomes = lambda inputs: inputs.rollouts.mask_NT * inputs.outcomes_N[:, None]
    given = batch()
    row = given.ended[0].rows[0]
    row.credits[0] = row.credits[0].model_copy(update={"reward": 0.5})
    with pytest.raises(ConfigError, match="of 1 of 5 rollouts are not finite, of 'a' for one"):
        weigh(given, WeighingOptions(estimator="own:of_outcomes"))


def costs(each):
    """What foresees that each sampled token costs so much."""
    return lambda rows: Foreseen(penalties=[[-each] * row.num_sampled for row in rows])


@pytest.mark.parametrize(
    ("foresee", "is_foreseen"),
    [
        (None, False),
        (lambda rows: Foreseen(), False),  # as of reinforce++ without kl
        (lambda rows: Foreseen(gamma=0.9), True),
        (costs(1.0), True),
    ],
)
def test_an_advantage_says_whether_more_than_rewards_made_it(batch, foresee, is_foreseen):
    weighed = weigh(batch(), WeighingOptions(estimator="reinforce_plus_plus"), foresee)
    assert {each.is_foreseen for one in weighed for each in one.advantages} == {is_foreseen}


@pytest.mark.parametrize(
    ("penalties", "words"),
    [
        (lambda rows: [[-1.0] * row.num_sampled for row in rows[1:]], r"for \d rows; got \d$"),
        (lambda rows: [[math.nan] * row.num_sampled for row in rows], "row 0.*got .nan"),
        (lambda rows: [[-1.0] * 99 for row in rows], "finite numbers for row 0, one per sampled"),
        (lambda rows: [-1.0 for row in rows], r"row 0.*got -1.0$"),
        (lambda rows: [["much"] * row.num_sampled for row in rows], "row 0.*got .'much'"),
    ],
)
def test_what_is_foreseen_is_looked_at(batch, penalties, words):
    with pytest.raises(ConfigError, match=f"foresee: expected .*{words}"):
        weigh(batch(), WeighingOptions(), lambda rows: Foreseen(penalties=penalties(rows)))


def test_penalties_count_with_the_default_estimator_too(batch):
    same = batch(a=0.0, b=0.0, c=0.0, d=0.0, e=0.0)
    found = weigh(same, WeighingOptions(estimator={"normalise_std": False}), costs(1.0))
    assert [one.advantages[0].value for one in found] == [-1.0, 1.0, 1.0, -1.0]  # a, b, d and e


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus"])
def test_what_is_said_of_an_advantage_has_its_penalties(batch, name):
    same = batch(a=1.0, b=1.0, c=1.0, d=1.0, e=1.0)
    weighed = weigh(same, WeighingOptions(estimator=name), costs(0.5))
    long = next(one for one in weighed if one.row.rollout_id == "e")
    assert long.advantages[0].because.endswith(
        "its reward: 1; penalties of its rollout: -1.5; their sum: -0.5 against mean 0, std 0.7071 "
        "of 2 rollouts"
    )


def test_an_estimator_that_takes_no_penalties_refuses_them(batch):
    options = WeighingOptions(estimator={"type": "gdpo", "rewards": {"all": 1.0}})
    with pytest.raises(ConfigError, match="'gdpo' compares dimensions of the reward, and takes no"):
        weigh(batch(), options, costs(0.5))


def test_an_unknown_estimator_is_named(batch):
    with pytest.raises(ConfigError, match="weigh: estimator is 'rlo'; expected gae, gdpo, "):
        weigh(batch(), WeighingOptions(estimator="rlo"))


def test_every_estimator_can_be_chosen_or_says_why_not():
    pytest.importorskip("torch")
    from agl_learning.advantages.estimators import ESTIMATORS

    assert {*ADVANTAGES, *OF_TOKENS} == {*ESTIMATORS, "reverse_kl"}
    assert all(describe_estimator(name) for name in (*ADVANTAGES, *OF_TOKENS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "gae"}, "Mine: estimator 'gae' .* a critic's values, which .* 'ppo' has.*"
         "Here there are grpo, rloo,"),
        ({"estimator": "optimal_token_baseline"}, "sums of squared probabilities, which .*'verl'"),
        ({"estimator": "rlo"}, "Mine: estimator is 'rlo'; expected grpo, rloo, .* or reinforce"),
        ({"estimator": ["rloo"]}, r"estimator.type must be a string; got \['rloo'\]"),
        ({"estimator": "gdpo"}, "estimator.rewards is needed by 'gdpo'"),
        ({"estimator": {"type": "rloo", "rewards": {"all": 1}}}, "for 'gdpo', and .*'rloo'"),
        ({"estimator": {"type": "rloo", "normalise_std": False}},
         "normalise_std=False is for .*grpo, grpo_passk, gdpo, and estimator is 'rloo'"),
        ({"estimator": {"type": "gdpo", "rewards": "all"}}, "estimator.rewards must be a dict"),
        ({"estimator": {"type": "gdpo", "rewards": {"all": math.nan}}},
         "estimator.rewards.all must be a finite number; got nan"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        check_weighing("Mine", WeighingOptions(**options))


def test_one_rollout_per_task_is_refused_where_siblings_are_compared():
    for name in sorted({*ADVANTAGES} - {"gdpo"}):
        options = WeighingOptions(estimator=name)
        options.check_copies("Mine", group_size=2)
        if name == "reinforce_plus_plus":
            options.check_copies("Mine", group_size=1)
            continue
        expected = f"group_size must be at least 2; got 1: estimator '{name}' compares rollouts"
        with pytest.raises(ConfigError, match=expected):
            options.check_copies("Mine", group_size=1)


def test_the_default_needs_no_torch_and_the_others_say_that_they_do():
    code = """
import sys
sys.modules["torch"] = None
from agl.errors import ConfigError
from agl_learning.advantages.weighing import *
check_weighing("Mine", WeighingOptions())
try:
    check_weighing("Mine", WeighingOptions(estimator="rloo"))
except ConfigError as error:
    print(error)
"""
    run = python("-c", code, check=True)
    assert run.stdout.startswith("Mine: estimator 'rloo' needs torch, which is not installed.")
