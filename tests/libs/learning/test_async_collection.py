"""What older weights than allowed have sampled is rejected; nobody takes what was given up."""

import asyncio
from dataclasses import replace

import pytest

from agl.errors import StoppedError
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.resume.collection_journal import Request
from agl_learning.trainer.async_collection import Ahead, reject_stale


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
    assert trained == {"fresh", "within"}  # the mean of these and the last is that one's reward
    assert batch.ledger.rollouts()["over two"] == "rejected"
    reasons = {one.detail for one in batch.ledger.exclusions if one.reason == "rejected"}
    assert reasons == {"weights 2 updates behind sampled it, and max_staleness is 1"}


def request(after, key="first"):
    return Request("train", ["task"], 1, key, 0, {}, after=after)


async def test_what_was_given_up_meanwhile_is_run_once_more():
    ran = []

    async def run(asked):
        ran.append(asked.key)
        return asked.key

    ahead = Ahead(run)
    ahead.begin(request(3), {"ahead": [1]})
    assert 3 in ahead
    taken = await ahead.take(3, lambda one: replace(one, key="second"))
    assert (taken, ran) == (("second", {"ahead": [1]}), ["first", "second"])
    assert 3 not in ahead


async def test_who_stops_is_told_what_nobody_has_taken(caplog):
    begun = asyncio.Event()

    async def run(asked):
        if asked.after == 1:
            begun.set()
            await asyncio.Event().wait()
        if asked.after == 2:
            raise RuntimeError("no answer")
        raise StoppedError("as it was asked to")

    ahead = Ahead(run)
    for after in (1, 2, 3):
        ahead.begin(request(after), {})
    await begun.wait()
    assert [one.after for one in await ahead.stop()] == [1, 2, 3]
    assert [one.message for one in caplog.records] == [
        "the rollouts of step 3 had failed: no answer"
    ]
    assert await ahead.stop() == []


async def test_a_failure_reaches_the_step_whose_rollouts_it_ended():
    async def run(asked):
        raise RuntimeError("no answer")

    ahead = Ahead(run)
    ahead.begin(request(0), {})
    with pytest.raises(RuntimeError, match="no answer"):
        await ahead.take(0, lambda one: one)
    assert 0 not in ahead
