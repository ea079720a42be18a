"""Rollouts that have ended are given once each, however they end."""

from typing import Any

import pytest

from agl_trackers.rollouts import Following


async def queued(store: Any, number: int, run: str = "mine", **about: Any) -> list[str]:
    metadata = {"run": run, **about}
    made = [await store.enqueue_rollout(n, metadata=metadata) for n in range(number)]
    return [one.rollout_id for one in made]


async def end(store: Any, number: int, status: str = "succeeded") -> None:
    for one in await store.dequeue_many_rollouts(limit=number):
        await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status=status)


@pytest.fixture
async def following(store, monkeypatch):
    """One that asks for two at a time."""
    monkeypatch.setattr("agl_trackers.rollouts.ASKED", 2)
    following = Following(store, "mine")
    await following.start()
    return following


async def test_each_rollout_of_the_run_is_given_once_after_its_end(store):
    await queued(store, 1)  # before the run
    await end(store, 1)
    following = Following(store, "mine")
    await following.start()
    ids = await queued(store, 3)
    assert await following.ended() == []
    await end(store, 2)
    assert [one.rollout_id for one in await following.ended()] == ids[:2]
    others = await queued(store, 1, run="another")
    await end(store, 2)
    assert [one.rollout_id for one in await following.ended()] == ids[2:]
    assert others
    assert await following.ended() == []


async def test_one_that_does_not_end_holds_none_up(store, following):
    ids = await queued(store, 5)
    stuck = await store.dequeue_many_rollouts(limit=2)
    for _ in range(3):
        assert await following.ended() == []
    await end(store, 3)
    given: list[str] = []
    for _ in range(6):
        given += [one.rollout_id for one in await following.ended()]
    assert sorted(given) == sorted(set(ids) - {one.rollout_id for one in stuck})


async def test_rollouts_of_others_hold_none_back(store, following):
    await queued(store, 5, run="another")
    [mine] = await queued(store, 1)
    await end(store, 6)
    assert [one.rollout_id for one in await following.ended()] == [mine]


async def test_the_last_look_is_at_all_that_had_not_ended(store, following):
    ids = await queued(store, 7)
    stuck = await store.dequeue_many_rollouts(limit=5)
    assert await following.ended() == []
    await end(store, 2)
    given: list[str] = []
    while some := await following.ended(all_open=True):
        given += [one.rollout_id for one in some]
    assert given == ids[5:7]
    assert following.num_open == len(stuck)
