"""The rollouts of each step are found, whatever came since."""

from typing import Any

import pytest

import agl
from agl_trackers.steps import Steps, newest

from .test_following import end


async def queued(store: Any, number: int, **about: Any) -> list[str]:
    metadata = {"run": "mine", **about}
    made = [await store.enqueue_rollout(n, metadata=metadata) for n in range(number)]
    return [one.rollout_id for one in made]


async def some(steps: Steps, step: int, most: int = 8) -> list[str]:
    return [one.rollout_id for one in await steps.some(step, most)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_trackers.steps.ASKED", 4)


async def test_those_of_a_step_are_found_behind_many_of_later_steps() -> None:
    store = agl.InMemoryLightningStore()
    steps = Steps(store, "mine")
    await steps.start()
    first = await queued(store, 3, step=1)
    await queued(store, 5, run="another", step=1)
    others = [await queued(store, 9, step=step) for step in (2, 3, 4)]
    await end(store, 100)
    assert await some(steps, 1) == first
    assert await some(steps, 2, 9) == others[0]
    assert await some(steps, 4, 9) == others[2]
    assert await some(steps, 3) == []


async def test_those_that_were_queued_ahead_are_kept_for_their_step() -> None:
    store = agl.InMemoryLightningStore()
    steps = Steps(store, "mine")
    await steps.start()
    second = await queued(store, 2, step=2)
    first = await queued(store, 2, step=1)
    await end(store, 100)
    assert await some(steps, 1) == first
    assert await some(steps, 2) == second


async def test_they_are_spread_over_the_step_and_have_ended() -> None:
    store = agl.InMemoryLightningStore()
    steps = Steps(store, "mine")
    await steps.start()
    ids = await queued(store, 8, step=1)
    await end(store, 8)
    assert await some(steps, 1, 2) == [ids[0], ids[4]]
    ids = await queued(store, 8, step=2)
    await end(store, 3)
    assert await some(steps, 2, 4) == ids[:3]


async def test_those_that_say_no_step_count_for_the_next_one() -> None:
    store = agl.InMemoryLightningStore()
    steps = Steps(store, "mine")
    await steps.start()
    ids = await queued(store, 2)
    await end(store, 2)
    assert await some(steps, 1) == ids
    assert await some(steps, 2) == []


async def test_a_run_that_goes_on_has_those_that_its_earlier_start_queued() -> None:
    store = agl.InMemoryLightningStore()
    await queued(store, 5, step=1)
    ids = await queued(store, 2, step=2)
    await end(store, 7)
    steps = Steps(store, "mine")
    await steps.start(goes_on=True)
    more = await queued(store, 1, step=2)
    await end(store, 1)
    assert await some(steps, 2) == ids + more
    new = Steps(store, "mine")
    await new.start()
    assert await some(new, 2) == []


async def test_a_run_without_steps_has_its_newest() -> None:
    store = agl.InMemoryLightningStore()
    ids = await queued(store, 6)
    await end(store, 6)
    assert [one.rollout_id for one in await newest(store, "mine", 2)] == [ids[2], ids[4]]
