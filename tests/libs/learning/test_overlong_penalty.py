"""What answers near the limit of tokens cost, by hand."""

import pytest

from agl_learning.advantages.overlong_penalty import punished, punishment
from agl_learning.advantages.weighing import WeighingOptions, weigh


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (120, -1)]
)
def test_the_cost_rises_in_a_line_over_the_buffer(tokens, expected):
    assert punishment(tokens, 100, 20) == pytest.approx(expected)


def test_the_longest_answer_of_a_rollout_costs_it_reward(collected, ended):
    # Limit 4, buffer 2: answers of 1, 3 and 4 tokens cost 0, 1/2 and 1; times 0.5.
    overlong, plain = {"buffer": 2, "penalty": 0.5}, {"normalise_std": False}
    options = WeighingOptions(max_tokens=4, overlong=overlong, estimator=plain)
    batch = collected(
        ended("short", 0, [([1], [7], 1.0)]),
        ended("near", 0, [([1], [7], 1.0), ([1], [7] * 3, 1.0)]),
        ended("cut", 0, [([1], [7] * 4, 1.0)]),
    )
    # Rewards 1, 0.75 (both calls) and 0.5: mean 0.75.
    weighed = {one.row.rollout_id: one for one in weigh(batch, options)}
    batch.ledger.check()
    assert {name: [a.value for a in one.advantages] for name, one in weighed.items()} == {
        "short": [0.25],
        "cut": [-0.25],
    }
    assert weighed["cut"].row.credits[0].because.endswith("; -0.5 for an answer of 4 tokens")
    assert batch.mean_reward == 1.0  # what the agent got is what is reported
    (without,) = punished([(None, [(0, batch.ended[0].rows[0])])], WeighingOptions())
    assert without[1][0][1] is batch.ended[0].rows[0]


def test_an_answer_that_the_adapter_left_out_as_it_was_cut_off_costs_as_one_at_the_limit(
    collected, ended
):
    options = WeighingOptions(max_tokens=4, overlong=2, estimator={"normalise_std": False})
    short = ([1], [7], 1.0)
    batch = collected(ended("cut", 0, [([1], [7] * 4, 1.0), short]), ended("short", 0, [short]))
    (row,) = batch.ended[0].rows
    batch.ended[0].rows = [row.only([1])]
    batch.ledger.exclude_row(row.only([0]), "truncated", "its answer was cut off")
    # Rewards 0 and 1.
    weighed = {one.row.rollout_id: one.of_tokens for one in weigh(batch, options)}
    assert weighed == {"cut": [-0.5], "short": [0.5]}
