"""What counts as an advantage of zero: decided on the rewards, not on what rounding leaves."""

import itertools
import math

import pytest

from agl.utils.rewards import MAX_REWARD
from agl_learning.advantages.group_advantages import group_advantages, moments, sibling_advantages
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_records.types import Credit, StepCredit

from .rollouts_by_hand import make_collected, make_ended, row_of


@pytest.mark.parametrize("reward", [0.1, 0.3, 1 / 3, 0.7, 1e-9, 1e9, -0.1, 0.0])
@pytest.mark.parametrize("number", range(1, 9))
def test_equal_rewards_have_no_advantage_at_all(reward, number):
    for normalise in (True, False):
        assert group_advantages([[reward]] * number, normalise) == [[0.0]] * number
    assert moments([[reward]] * number).std == 0


@pytest.mark.parametrize(
    "rewards",
    [[0.0, 0.5, 1.0], [0.1, 0.2, 0.3], [0.2, 0.4, 0.6], [1.1, 2.2, 3.3], [0.1, 0.2, 0.3, 0.2]],
)
def test_which_rollouts_count_does_not_hang_on_rounding(rewards):
    for given in itertools.permutations(rewards):
        rollouts = enumerate(given)
        batch = make_collected(*(make_ended(f"ro-{n}", 0, [([1], [2, 3], r)]) for n, r in rollouts))
        weighed = weigh(batch, WeighingOptions())
        batch.ledger.check()
        # The middle is at the mean; the two others are 1 deviation from it, or sqrt(3/2) where
        # there are two in the middle.
        assert [given.index(max(rewards)), given.index(min(rewards))] == [
            next(n for n, one in enumerate(given) if f"ro-{n}" == each.row.rollout_id)
            for each in sorted(weighed, key=lambda each: -each.advantages[0].value)
        ]
        assert batch.ledger.reasons() == {"zero_advantage": len(rewards) - 2}


def test_a_difference_that_somebody_means_is_kept_however_small_it_is():
    high, low = group_advantages([[1e9 + 1], [1e9]], normalise_std=False)
    assert (high, low) == ([0.5], [-0.5])
    high, low = group_advantages([[2e-9], [1e-9]], normalise_std=False)
    assert (high, low) == ([pytest.approx(5e-10)], [pytest.approx(-5e-10)])


@pytest.mark.parametrize("normalise", [True, False])
def test_the_largest_rewards_have_finite_advantages(normalise):
    found = group_advantages([[MAX_REWARD], [0.0], [-MAX_REWARD]], normalise)
    assert [math.isfinite(one) for (one,) in found] == [True] * 3
    assert found[0][0] > 0 == found[1][0] > found[2][0]


def test_two_terms_that_cancel_are_zero():
    # The first of two: 0.3 - mean(0.3, 0.1) = 0.1, and 1 * (0.2 - mean(0.2, 0.4)) = -0.1.
    credits = [
        Credit(reward=0.3, step=StepCredit(reward=0.2, group="s", weight=1.0)),
        Credit(reward=0.1, step=StepCredit(reward=0.4, group="s", weight=1.0)),
    ]
    rows = [row_of(str(n), [1, 2, 3], [(1, 3)], [one]) for n, one in enumerate(credits)]
    found = sibling_advantages([[one] for one in rows], False)
    assert [rows[0][0].value for rows in found] == [0.0, 0.0]
