"""Where rollouts come from: in the step, with refills, or ahead of it."""

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from agl.errors import ConfigError, StoppedError
from agl_learning.advantages.estimator_option import Foreseen
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.task_order import Tasks
from agl_learning.trainer.source import Ahead, InStep, check_source, idle_groups, reject_stale

WEIGH = partial(weigh, options=WeighingOptions())
TASKS = Tasks(range(100), 0)
SAME, DIFFER = (1.0, 1.0), (1.0, 0.0)


class Runners:
    """Give what ``answer`` does, and note what they are asked for."""

    def __init__(self, answer):
        self.answer, self.asked, self.keys = answer, [], {}

    async def collect(self, after, gather, tasks):
        return await gather()

    async def ask(self, after, tasks, first_group):
        self.asked.append((after, [*tasks], first_group))
        return await self.answer(after, tasks, first_group)

    def key(self, after):
        return self.keys.get(after, "first")


def groups_of(collected, ended, rewards, first, *more):
    """Groups of rollouts, numbered from the first, with these rewards; and others."""
    rollouts = [
        ended(f"r{number}-{copy}", number, [([1], [7], reward)])
        for number, group in enumerate(rewards, first)
        for copy, reward in enumerate(group)
    ]
    return collected(*rollouts, *more)


@pytest.fixture
def runners(collected, ended):
    """What comes of the tasks that are asked for: per group, the rewards of its rollouts."""

    def build(*rewards):
        left = list(rewards)

        async def answer(after, tasks, first):
            taken, left[:] = left[: len(tasks)], left[len(tasks) :]
            return groups_of(collected, ended, taken, first)

        return Runners(answer)

    return build


def test_groups_without_advantage_are_the_idle_ones_and_nothing_is_booked(collected, ended):
    failed = ended("e", 2, [([1], [7], 1.0)], status="failed")
    batch = groups_of(collected, ended, [DIFFER, SAME, (0.0,)], 0, failed)
    assert idle_groups(batch, WEIGH) == {1, 2}
    assert batch.ledger.trained == batch.ledger.exclusions == []


async def test_as_many_are_drawn_as_taught_nothing_and_the_next_step_takes_the_tasks_after(runners):
    asked = runners(DIFFER, SAME, SAME, SAME, DIFFER, DIFFER, DIFFER, DIFFER, DIFFER)
    source = InStep(asked, TASKS, 3, 10, 5, WEIGH)
    whole = await source.next(0)
    # Of 3 groups 1 taught something, of 2 more 1 did, and of 1 more that.
    expected = [(3, 0), (2, 3), (1, 5)]
    assert [(len(tasks), first) for _, tasks, first in asked.asked] == expected
    assert [one.group for one in whole.ended[::2]] == [0, 1, 2, 3, 4, 5]
    assert len(whole.ledger.calls) == 12
    assert idle_groups(whole, WEIGH) == {1, 2, 3}
    await source.next(1)
    drawn = [task for _, tasks, _ in asked.asked for task in tasks]
    assert drawn == Tasks(range(100), 0).take(10, 9)
    assert source.taken == 19


@pytest.mark.parametrize(("limit", "expected"), [(0, [(2, 0)]), (1, [(2, 0), (2, 2)])])
async def test_no_more_are_drawn_than_the_limit_allows(runners, limit, expected):
    asked = runners(*[SAME] * 9)
    await InStep(asked, TASKS, 2, 0, limit, WEIGH).next(0)
    assert [(len(tasks), first) for _, tasks, first in asked.asked] == expected


def test_refills_without_groups_are_refused():
    estimator = WeighingOptions(estimator="reinforce_plus_plus").estimator
    options = SimpleNamespace(estimator=estimator, max_refills=1, max_staleness=0)
    with pytest.raises(ConfigError, match="'reinforce_plus_plus' compares no groups"):
        check_source("Mine", options)


@pytest.mark.plugins
async def test_what_a_model_has_to_say_of_the_rows_counts_and_is_asked_beside_the_loop(runners):
    pytest.importorskip("torch")
    threads = []

    def foresee(rows):
        threads.append(threading.current_thread())
        return Foreseen(penalties=[[-0.1 * n] for n, _ in enumerate(rows)])

    asked = runners(SAME, SAME)
    by_rloo = partial(weigh, options=WeighingOptions(estimator="rloo"), foresee=foresee)
    await InStep(asked, TASKS, 1, 0, 1, by_rloo).next(0)
    # Rewards less penalties are 1 and 0.9: the group teaches something, and none is drawn for it.
    assert len(asked.asked) == 1
    assert threading.main_thread() not in threads


def sampled_by(one, *versions):
    one.rows[0].model_versions = [*versions]
    return one


def test_rollouts_of_which_a_call_is_too_old_are_rejected(collected, ended):
    two = [([1], [7], 0.0), ([2], [8], 0.0)]
    batch = collected(
        sampled_by(ended("fresh", 0, [([1], [7], 1.0)]), "9"),
        sampled_by(ended("within", 0, [([1], [7], 0.0)]), "8"),
        sampled_by(ended("over two", 0, two), "9", "7"),
        sampled_by(ended("nobody knows", 0, [([1], [7], 0.5)]), None),
    )
    # Before version 9 is changed: lags 0, 1 and 2.
    assert reject_stale(batch, 9, 1) == {"rollouts/stale": 1, "version_lag/max": 1}
    trained = {one.row.rollout_id for one in weigh(batch, WeighingOptions())}
    batch.ledger.check()
    assert trained == {"fresh", "within"}
    assert batch.ledger.rollouts()["over two"] == "rejected"
    assert batch.ledger.rollouts()["nobody knows"] == "unknown_version"
    reasons = {one.detail for one in batch.ledger.exclusions if one.reason == "rejected"}
    assert reasons == {"weights 2 updates behind sampled it, and max_staleness is 1"}


async def test_what_was_given_up_meanwhile_is_run_once_more():
    async def answer(after, tasks, first):
        if len(asked.asked) == 1:
            asked.keys[3] = "second"
        return after

    asked = Runners(answer)
    source = Ahead(asked, TASKS, 2, 6, max_staleness=1, steps=4)
    assert await source.next(3) == 3
    tasks = Tasks(range(100), 0).take(6, 2)
    assert asked.asked == [(3, tasks, 0), (3, tasks, 0)]
    assert source.taken == 8


async def test_who_stops_is_told_what_nobody_has_taken(caplog):
    hangs = asyncio.Event()

    async def answer(after, tasks, first):
        if after == 0:
            await hangs.wait()
        if after == 1:
            hangs.set()
            await asyncio.Event().wait()
        if after == 2:
            raise RuntimeError("no answer")
        if after == 3:
            raise StoppedError("as it was asked to")

    source = Ahead(Runners(answer), TASKS, 2, 0, max_staleness=3, steps=9)
    await source.next(0)
    assert [after for after, _ in await source.stop()] == [1, 2, 3]
    assert [one.message for one in caplog.records] == [
        "the rollouts of step 3 had failed: no answer"
    ]
    assert await source.stop() == []


async def test_a_failure_reaches_the_step_whose_rollouts_it_ended():
    async def answer(after, tasks, first):
        raise RuntimeError("no answer")

    source = Ahead(Runners(answer), TASKS, 2, 0, max_staleness=0, steps=9)
    with pytest.raises(RuntimeError, match="no answer"):
        await source.next(0)
    assert await source.stop() == []
