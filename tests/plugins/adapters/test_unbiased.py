"""Credit per call has the gradient of the expected reward, and what looks like it has not.

An agent decides twice, each time between two words; its policy is four logits, two of them for what
it says after the first word. All groups of siblings are enumerated, each with its probability, so
that what comes out is an expectation and no estimate of one.
"""

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

from agl.types import Rollout
from agl_adapters import Discounted, TraceToRows
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.ledger import Ledger
from agl_testing.traces import Trace
from agl_torch.loss import row_weights

FIRST = np.array([0.7, 0.3])
SECOND = np.array([[0.4, 0.6], [0.8, 0.2]])
AT_ONCE = [1.0, 0.0]
LATER = [[0.0, 0.5], [3.0, 1.0]]
"""The second word is worse at once, and better in the end."""
PLAYS = list(itertools.product((0, 1), (0, 1)))


def probability(play):
    first, second = play
    return FIRST[first] * SECOND[first, second]


def scores(play):
    """Gradients of the log-probabilities of both words: (first, after 0, after 1), two logits."""
    first, second = play
    found = np.zeros((2, 3, 2))
    found[0, 0] = np.eye(2)[first] - FIRST
    found[1, 1 + first] = np.eye(2)[second] - SECOND[first]
    return found


def exact():
    """The gradient of the expected reward."""
    return sum(
        probability(play) * (AT_ONCE[play[0]] + LATER[play[0]][play[1]]) * scores(play).sum(0)
        for play in PLAYS
    )


def rows_of(play, credit):
    """As the adapter makes them of what the agent did; both calls are in one row."""
    first, second = play
    trace = Trace()
    trace.gateway([1], [10 + first])
    trace.reward(AT_ONCE[first])
    trace.gateway([1, 10 + first, 2], [20 + second])
    trace.reward(LATER[first][second])
    return TraceToRows(credit=credit).adapt(trace.spans).rows


def expected(credit, size, mean="rollout", **options):
    """What an estimator's sum over the calls of a group is in the mean.

    Times two calls and ``size`` rollouts, by which the weights of ``mean`` divide.
    """
    rows = {play: rows_of(play, credit) for play in PLAYS}
    total = np.zeros((3, 2))
    for group in itertools.product(PLAYS, repeat=size):
        ended = []
        for number, play in enumerate(group):
            rollout = Rollout(
                rollout_id=f"r{number}", input=None, start_time=0.0, status="succeeded"
            )
            of_it = [row.model_copy(update={"rollout_id": f"r{number}"}) for row in rows[play]]
            ended.append(Ended(rollout, 0, 0.0, of_it))
        chance = np.prod([probability(play) for play in group])
        weighed = weigh(Collected(ended, Ledger(), 0.0), WeighingOptions(**options))
        if not weighed:
            continue
        rows_D = [one.row for one in weighed]
        weights_D = row_weights(
            [row.rollout_id for row in rows_D],
            [row.num_sampled for row in rows_D],
            mean,
            2,
            weighed[0].left_out,
        )
        for one, weight in zip(weighed, weights_D, strict=True):
            of_calls = scores(group[int(one.row.rollout_id[1:])])
            for (start, _), advantage in zip(one.row.call_ranges, one.advantages, strict=True):
                of_call = of_calls[0 if start == 1 else 1]
                total += 2 * size * chance * weight.token * advantage.value * of_call
    return total


class OfAnyTurn(Discounted):
    """Returns that are compared with those of all turns."""

    def assign(self, calls, spans):
        given = super().assign(calls, spans)
        return [credit.model_copy(update={"group": ""}) for credit in given]


@pytest.mark.parametrize("mean", ["rollout", "token", "constant"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("credit", [Discounted(gamma=1.0), "final"], ids=["discounted", "final"])
def test_returns_of_calls_against_the_same_call_of_others_are_unbiased(credit, size, mean):
    gradient = exact()
    if credit == "final":  # the last reward alone is what it makes larger
        gradient = sum(
            probability(play) * LATER[play[0]][play[1]] * scores(play).sum(0) for play in PLAYS
        )
    rloo = expected(credit, size, mean, estimator="rloo")
    assert rloo == pytest.approx(size * gradient, abs=1e-9)
    # With its own reward in the mean, all of it is smaller by the same part.
    grpo = expected(credit, size, mean, estimator={"normalise_std": False})
    assert grpo == pytest.approx((size - 1) * gradient, abs=1e-9)


def test_the_reward_of_each_turn_alone_goes_the_wrong_way():
    gradient, found = exact(), expected("per_call", 3, estimator="rloo")
    # It makes the word likelier that is better at once.
    assert gradient[0, 1] > 0.1 > 0 > found[0, 1]


def test_returns_against_those_of_all_turns_are_biased():
    found = expected(OfAnyTurn(gamma=1.0), 2, estimator={"normalise_std": False})
    gradient = exact()
    # Right for the second word; the first has too little, as its own later return is in the mean.
    assert found[1:] == pytest.approx(gradient[1:], abs=1e-9)
    assert found[0, 1] < 0.7 * gradient[0, 1]
