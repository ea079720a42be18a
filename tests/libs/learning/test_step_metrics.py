"""What becomes of collected rollouts, and which tasks come next: the helpers of algorithms."""

import pytest

from agl.errors import AlgorithmError, ConfigError
from agl.types import Rollout
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected, Ended
from agl_learning.collect.step_metrics import collected_metrics, version_lag, why_nothing
from agl_learning.collect.task_order import TaskOrder, Tasks
from agl_learning.run.records import Record
from agl_records.ledger.ledger import Ledger

from .rollouts_by_hand import leave_out, make_collected as collected, make_row, two_calls


def test_every_task_comes_once_before_any_comes_again():
    order = Tasks(range(7), seed=0)
    assert sorted(order.take(0, 3) + order.take(3, 4)) == list(range(7))
    assert sorted(order.take(7, 7)) == list(range(7))
    assert Tasks(range(7), seed=0).take(5, 9) == order.take(5, 9)


class Backwards(TaskOrder):
    def order(self, tasks, number, random):
        return tasks[2] and range(2, number - 1, -1)


class Odd(TaskOrder):
    def order(self, tasks, number, random):
        return range(1, len(tasks), 2)


def test_tasks_come_in_an_order_of_ones_own():
    assert Tasks("abc", 0, "as_given").take(1, 4) == list("bcab")
    mine = {"type": f"{__name__}:Backwards"}
    assert Tasks("abc", 0, mine).take(1, 4) == list("bacb")
    assert Tasks("abc", 0, "as_given").first_pass() == 3
    assert Tasks("abc", 0, {"type": f"{__name__}:Odd"}).first_pass() == 1
    with pytest.raises(ConfigError, match="positions from 0 to 2 for pass 3, at least one; got "):
        Tasks("abc", 0, mine).take(0, 9)
    with pytest.raises(AlgorithmError, match="Backwards failed for pass 0: IndexError: string"):
        Tasks("ab", 0, mine).take(0, 1)


def of_two(first, second, *more, groups=(0, 0)):
    """Rollouts a and b with these rewards, and others."""
    rewards = zip("ab", groups, (first, second), strict=True)
    return collected(*(ended(n, group, make_row(n, 5, one)) for n, group, one in rewards), *more)


def ended(rollout_id, group, *rows, status="succeeded"):
    rollout = Rollout(rollout_id=rollout_id, input=None, start_time=0.0, status=status)
    return Ended(rollout, group, rows[0].reward if rows else None, list(rows))


def test_rows_of_failed_rollouts_do_not_move_their_groups_mean():
    failed = ended("c", 0, make_row("c", 7, 1.0), status="failed")
    batch = of_two(1.0, 0.0, failed, ended("d", 1, make_row("d", 7, 1.0)))
    result = weigh(batch, WeighingOptions(estimator={"normalise_std": False}))
    batch.ledger.check()
    # Of group 0 two rollouts count: mean 0.5. Group 1 has one rollout and so no advantage.
    found = {one.row.rollout_id: [a.value for a in one.advantages] for one in result}
    assert found == {"a": [0.5], "b": [-0.5]}
    assert batch.ledger.reasons() == {"failed_attempt": 1, "zero_advantage": 1}
    bins = {"a": "trained", "b": "trained", "c": "failed_attempt", "d": "zero_advantage"}
    assert batch.ledger.rollouts() == bins
    (trained, _) = batch.ledger.trained
    assert trained.row == 0
    assert trained.advantage.because == "1 against mean 0.5, std 0.7071 of 2 rollouts"


def test_calls_of_one_row_train_with_advantages_of_their_own():
    rows = two_calls("a", 1.0, 3.0), two_calls("b", 1.0, 1.0)
    batch = collected(*(ended(row.rollout_id, 0, row) for row in rows))
    result = weigh(batch, WeighingOptions(estimator={"normalise_std": False}))
    batch.ledger.check()
    # Both first calls got 1, so they are left out; the second ones got 3 and 1 against mean 2.
    assert batch.ledger.reasons() == {"zero_advantage": 2}
    for one, value in zip(result, (1.0, -1.0), strict=True):
        assert (one.row.call_ids, one.row.loss_mask) == (["two"], [0, 0, 0, 0, 1])
        assert [each.value for each in one.advantages] == [value]


def test_a_record_tells_what_the_store_has_lost_of_its_rollouts():
    whole, record = of_two(1.0, 0.0), Record.of(of_two(1.0, 0.0), 0)
    assert record.what_is_gone(whole) == ""
    failed = collected(ended("a", 0, make_row("a", 5)), ended("b", 0, status="failed"))
    assert record.what_is_gone(failed) == "are not whole in the store: 1 succeeded of 2"
    no_call = collected(ended("a", 0, make_row("a", 5)), ended("b", 0))
    assert record.what_is_gone(no_call) == "are not whole in the store: 1 calls of 2"


def test_version_lag_counts_how_old_the_sampling_weights_were():
    rows = [make_row("a", 5, version="3"), make_row("b", 5, version="5")]
    assert version_lag(rows, 5) == 1.0
    rows[0].model_versions = [None]
    assert version_lag(rows, 5) == 0.0
    rows[0].model_versions = ["3-4"]  # the weights changed while it was sampled
    assert version_lag(rows, 5) == 1.0
    rows[0].model_versions = rows[1].model_versions = [None]
    assert version_lag(rows, 5) is None


def test_a_step_with_equal_rewards_is_solved_whatever_else_was_called():
    batch = of_two(1.0, 1.0, ended("c", 1, status="failed"))
    leave_out(batch.ledger, "judge", "other_model", attempt_id="at-a")
    assert weigh(batch, WeighingOptions()) == []
    assert WeighingOptions().idle_reason(batch) == "solved"


def test_what_was_compared_with_nothing_or_not_equal_is_not_solved():
    failed = of_two(1.0, 1.0, *(ended(name, 1, status="failed") for name in "cd"))
    for batch in (of_two(1.0, 1.0, groups=(0, 1)), of_two(1.0, 0.0), failed, collected()):
        weigh(batch, WeighingOptions())
        assert WeighingOptions().idle_reason(batch) == ""


def test_answers_that_were_cut_off_are_counted_once_whatever_became_of_them():
    batch = of_two(1.0, 0.0)
    reasons = ("truncated", "over_length", "judge", "other_model", "failed_attempt")
    for reason in reasons:
        leave_out(batch.ledger, reason, reason, "b", "at-b", finish_reason="length")
    for name in ("one", "two"):  # the first answer above was cut off, and these are of its attempt
        leave_out(batch.ledger, name, "truncated", "b", "at-b", finish_reason="stop")
    assert collected_metrics(batch)["calls/truncated"] == 2
    assert collected_metrics(batch)["reward/std"] == 0.5
    again = Collected(batch.ended, Ledger.of_parts(batch.ledger.parts()), 0.0)
    assert collected_metrics(again)["calls/truncated"] == 2


def test_only_where_a_rollout_succeeded_is_the_address_of_the_model_in_doubt():
    failed, succeeded = (
        Ended(Rollout(rollout_id=status, input=None, start_time=0.0, status=status), 0, None, [])
        for status in ("failed", "succeeded")
    )
    assert "base_url" not in why_nothing(collected(failed))
    assert "does the agent use the base_url" in why_nothing(collected(failed, succeeded))


def test_a_step_of_refused_rewards_says_why_they_were():
    batch = collected(ended("a", 0))
    batch.ended[0].problem = "reward 'primary' is '1e+308' (float); expected a number"
    why = why_nothing(batch)
    assert "of 1 the reward was refused: reward 'primary' is '1e+308' (float); expected" in why
