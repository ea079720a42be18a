"""mean@n and pass@k, by hand and by counting all subsets."""

import itertools
import statistics

import pytest

from agl_learning.collect.pass_at_k import over_copies, pass_at_k


@pytest.mark.parametrize(("number", "k"), [(1, 1), (4, 1), (4, 2), (5, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_good_one(number, k):
    for passed in range(number + 1):
        copies = [n < passed for n in range(number)]
        subsets = [any(one) for one in itertools.combinations(copies, k)]
        assert pass_at_k(number, passed, k) == pytest.approx(statistics.mean(subsets))


def test_over_copies_by_hand():
    # Passed are 1 of 4, 4 of 4 and 0 of 2; the last has no three more, and a fourth has no reward.
    groups = [[1.0, 0.0, 0.5, 0.0], [1.0, 2.0, 1.0, 1.0], [0.0, 0.5], []]
    found = over_copies(groups, 4)
    assert found == {
        "mean@4": pytest.approx((1.5 / 4 + 5 / 4 + 0.25) / 3),
        "pass@1": pytest.approx((1 / 4 + 1 + 0) / 3),
        "pass@2": pytest.approx((1 - (3 * 2) / (4 * 3) + 1 + 0) / 3),
        "pass@4": pytest.approx((1 + 1) / 2),
    }


def test_a_reward_that_adds_up_to_one_but_for_rounding_is_a_pass():
    almost = 0.9999999999999999  # ten times 0.1, added up one by one
    assert almost < 1
    assert over_copies([[almost, 0.99]], 2)["pass@1"] == 0.5


def test_one_copy_says_nothing_more():
    assert over_copies([[1.0], [0.0]], 1) == {}
    assert over_copies([[], []], 4) == {}


def test_three_copies_have_pass_at_three():
    assert list(over_copies([[1.0, 0.0, 0.0]], 3)) == ["mean@3", "pass@1", "pass@2", "pass@3"]
