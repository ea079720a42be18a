"""Which tasks come next, across a state that was taken and restored."""

from agl_learning.collect.task_order import TaskOrder


def test_a_step_that_is_given_back_across_an_epochs_end_changes_nothing_that_comes():
    order, undisturbed = TaskOrder(3, seed=0), TaskOrder(3, seed=0)
    expected = [undisturbed.take(2) for _ in range(9)]
    taken = [order.take(2)]
    before = order.state()
    order.take(2)
    order.restore(before)
    taken += [order.take(2) for _ in range(8)]
    assert taken == expected
