"""The rollouts of each step are found, whatever came since."""

from typing import Any

import pytest

from agl_trackers.rollouts import ended_rollouts

from .test_following import end, queued


async def some(store: Any, step: int | None, most: int = 8, since: float = 0.0) -> list[str]:
    return [one.rollout_id for one in await ended_rollouts(store, "mine", step, most, since)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr("agl_trackers.rollouts.ASKED", 4)


async def test_those_of_a_step_are_found_behind_many_of_later_steps(store):
    first = await queued(store, 3, step=1)
    await queued(store, 5, run="another", step=1)
    others = [await queued(store, 9, step=step) for step in (2, 3, 4)]
    await end(store, 100)
    assert await some(store, 1) == first
    assert [await some(store, step, 9) for step in (2, 3, 4)] == others


async def test_those_that_were_queued_ahead_are_of_their_step(store):
    second = await queued(store, 2, step=2)
    first = await queued(store, 2, step=1)
    await end(store, 100)
    assert await some(store, 1) == first
    assert await some(store, 2) == second


async def test_they_are_spread_over_the_step_and_have_ended(store):
    ids = await queued(store, 8, step=1)
    await end(store, 8)
    assert await some(store, 1, 2) == [ids[0], ids[4]]
    ids = await queued(store, 8, step=2)
    await end(store, 3)
    assert await some(store, 2, 4) == ids[:3]


async def test_those_that_say_no_step_count_where_they_ended_since_the_last_one(store):
    ids = await queued(store, 2)
    await end(store, 2)
    assert await some(store, 1) == ids
    (ended, *_) = await store.query_rollouts(rollout_id_in=ids[1:])
    assert ended.end_time is not None
    assert await some(store, 2, since=ended.end_time + 1) == []


async def test_a_run_without_steps_has_its_newest(store):
    ids = await queued(store, 6)
    await end(store, 6)
    await queued(store, 9, step=2)  # which wait
    assert await some(store, None, 2) == [ids[2], ids[4]]
