"""The head of the queue, which a store keeps beside its file."""

from dataclasses import dataclass

import pytest

import agl
from agl.errors import InvalidRecordError
from agl.types import EnqueueRolloutRequest


@dataclass
class Point:
    x: int


async def claim(store: agl.LightningStore, count: int) -> list[object]:
    return [rollout.input for rollout in await store.dequeue_many_rollouts(limit=count)]


async def test_order_holds_where_the_head_overflows_and_fills_again(store):
    async def enqueue(numbers: range) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in numbers])

    await enqueue(range(3))
    assert await claim(store, 2) == [0, 1]  # the head is read: it is the whole queue
    await enqueue(range(3, 200))  # more than it holds
    assert await claim(store, 10) == list(range(2, 12))
    await enqueue(range(200, 210))
    assert await claim(store, 300) == list(range(12, 210))
    await enqueue(range(210, 212))
    assert await claim(store, 5) == [210, 211]


async def test_who_changes_a_queued_input_changes_what_is_claimed(store):
    await store.enqueue_rollout(0)
    assert await claim(store, 1) == [0]
    queued = await store.enqueue_rollout({"q": [1]})
    await store.update_rollout(queued.rollout_id, input={"q": [3]})
    assert await claim(store, 1) == [{"q": [3]}]


async def test_what_is_not_stored_is_not_claimed(store):
    await store.enqueue_rollout(0)
    assert await claim(store, 1) == [0]
    bad = [EnqueueRolloutRequest(input=1, metadata={"a": value}) for value in (1, object())]
    with pytest.raises(InvalidRecordError):
        await store.enqueue_many_rollouts(bad)
    assert await claim(store, 1) == []
    await store.enqueue_rollout(2)
    assert await claim(store, 5) == [2]


async def test_what_json_changes_is_claimed_as_it_is_stored_whatever_the_queue_holds(tmp_path):
    store = agl.SqliteLightningStore(tmp_path / "agl.db", durability="process")
    for num_before in (0, 200):  # the head is all of the queue, and it is not
        await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=n) for n in range(num_before)]
        )
        await store.enqueue_rollout((1, Point(2)), metadata={"a": (3,)})
        *_, last = await store.dequeue_many_rollouts(limit=num_before + 1)
        assert (last.input, last.metadata) == ([1, {"x": 2}], {"a": [3]})
        await store.enqueue_rollout(0)
        changed = await store.enqueue_rollout(0)
        await store.update_rollout(changed.rollout_id, input=(1,))
        assert await claim(store, 2) == [0, [1]]
    await store.close()
