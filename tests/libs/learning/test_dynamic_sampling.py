"""Groups that teach nothing are replaced by others, within a limit."""

import threading
from functools import partial

import pytest

from agl.errors import ConfigError
from agl_learning.advantages.estimates import Foreseen
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.trainer.dynamic_sampling import check_refills, collect_refilled, idle_groups

WEIGH = partial(weigh, options=WeighingOptions())


@pytest.fixture
def parts(collected, ended):
    """What comes of the tasks that are asked for: per group, the rewards of its rollouts."""

    def build(*rewards):
        left, asked = list(rewards), []

        async def collect(groups, part, first):
            asked.append((groups, part, first))
            taken, left[:] = left[:groups], left[groups:]
            if None in taken:
                return None
            return collected(
                *(
                    ended(f"r{first + n}-{copy}", first + n, [([1], [7], reward)])
                    for n, group in enumerate(taken)
                    for copy, reward in enumerate(group)
                )
            )

        return collect, asked

    return build


def test_groups_without_advantage_are_the_idle_ones_and_nothing_is_booked(collected, ended):
    batch = collected(
        ended("a", 0, [([1], [7], 1.0)]),
        ended("b", 0, [([1], [7], 0.0)]),
        ended("c", 1, [([1], [7], 1.0)]),
        ended("d", 1, [([1], [7], 1.0)]),
        ended("e", 2, [([1], [7], 1.0)], status="failed"),
        ended("f", 2, [([1], [7], 0.0)]),
    )
    assert idle_groups(batch, WEIGH) == {1, 2}
    assert batch.ledger.trained == batch.ledger.exclusions == []


async def test_as_many_are_drawn_as_taught_nothing(parts):
    same, differ = (1.0, 1.0), (1.0, 0.0)
    collect, asked = parts(differ, same, same, same, differ, differ)
    whole = await collect_refilled(collect, WEIGH, 3, 5)
    # Of 3 groups 1 taught something, of 2 more 1 did, and of 1 more that.
    assert asked == [(3, 0, 0), (2, 1, 3), (1, 2, 5)]
    assert [one.group for one in whole.ended[::2]] == [0, 1, 2, 3, 4, 5]
    assert len(whole.ledger.calls) == 12
    assert idle_groups(whole, WEIGH) == {1, 2, 3}


@pytest.mark.parametrize(("limit", "expected"), [(0, [(2, 0, 0)]), (1, [(2, 0, 0), (2, 1, 2)])])
async def test_no_more_are_drawn_than_the_limit_allows(parts, limit, expected):
    collect, asked = parts(*[(1.0, 1.0)] * 9)
    await collect_refilled(collect, WEIGH, 2, limit)
    assert asked == expected


async def test_a_part_that_was_given_up_begins_the_step_again(parts):
    differ, same = (1.0, 0.0), (1.0, 1.0)
    collect, asked = parts(same, differ, None, differ, differ)
    whole = await collect_refilled(collect, WEIGH, 2, 3)
    assert asked == [(2, 0, 0), (1, 1, 2), (2, 0, 0)]
    assert len(whole.ended) == 4


def test_refills_without_groups_are_refused():
    with pytest.raises(ConfigError, match="'reinforce_plus_plus' compares no groups"):
        check_refills("Mine", WeighingOptions(estimator="reinforce_plus_plus"), 1)


@pytest.mark.plugins
async def test_what_a_model_has_to_say_of_the_rows_counts_and_is_asked_beside_the_loop(parts):
    pytest.importorskip("torch")
    asked = []

    def foresee(rows):
        asked.append(threading.current_thread())
        return Foreseen(penalties=[[-0.1 * n] for n, _ in enumerate(rows)])

    collect, parts_asked = parts((1.0, 1.0), (1.0, 1.0))
    by_rloo = partial(weigh, options=WeighingOptions(estimator="rloo"), foresee=foresee)
    await collect_refilled(collect, by_rloo, 1, 1)
    # Rewards less penalties are 1 and 0.9: the group teaches something, and none is drawn for it.
    assert parts_asked == [(1, 0, 0)]
    assert threading.main_thread() not in asked
