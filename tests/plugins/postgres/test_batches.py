"""What rounds read ahead, in large calls and in batches."""

import asyncio

from agl.store.answers import AttemptEnd
from agl.store.engine.records import update_resources
from agl.types import EnqueueRolloutRequest, RolloutConfig, Span
from agl_postgres.store import PostgresLightningStore
from agl_postgres.tables import PostgresTables


async def test_the_longest_waiting_is_claimed_first_beside_an_enqueue(store):
    await store.enqueue_rollout("old")
    _, claimed = await asyncio.gather(store.enqueue_rollout("new"), store.dequeue_rollout())
    assert claimed.input == "old"


async def test_a_large_claim_and_a_large_repetition(store):
    tasks = [EnqueueRolloutRequest(input=n, key=str(n)) for n in range(300)]
    made = await store.enqueue_many_rollouts(tasks)
    again = await store.enqueue_many_rollouts(tasks)
    assert [one.rollout_id for one in made] == [one.rollout_id for one in again]
    claimed = await store.dequeue_many_rollouts(limit=250)
    assert [one.input for one in claimed] == list(range(250))
    pairs = [(one.rollout_id, one.attempt.attempt_id) for one in claimed]
    assert await store.get_many_span_sequence_ids(pairs) == [1] * 250


async def test_a_turn_reads_all_that_it_needs_at_once(store, monkeypatch):
    """Two exchanges more, and four runs of each turn, made a quarter of its cost."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(2)])
    first = await store.dequeue_rollout("w")
    exchanges, fetch = [], PostgresTables._fetch
    monkeypatch.setattr(PostgresTables, "_fetch", lambda self: exchanges.append(fetch(self)))
    ids = {"rollout_id": first.rollout_id, "attempt_id": first.attempt.attempt_id}
    span, end = Span.from_attributes(attributes={}, **ids), AttemptEnd(**ids, status="succeeded")
    done = await store.turn([span], finish=end, worker_id="w", key="second")
    assert (done.attempt.status, done.claimed[0].input, len(exchanges)) == ("succeeded", 1, 1)


async def test_resources_that_are_updated_again_in_a_transaction_are_the_latest(store):
    def update(tables, now):
        return [update_resources(tables, now, name, {}).version for name in "aba"]

    assert await asyncio.to_thread(store.write, update) == [1, 1, 2]
    assert (await store.get_latest_resources()).resources_id == "a"


async def test_many_attempts_may_be_overdue_at_once(store):
    config = RolloutConfig(timeout_seconds=0.5)
    started = [await store.start_rollout(n, config=config, worker_id=f"w{n}") for n in range(200)]
    ids = [one.rollout_id for one in started]
    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=20)
    assert {one.attempt.status for one in ended} == {"timeout"}
    assert len(ended) == 200


async def test_who_waits_for_a_rollout_hears_that_it_was_deleted_elsewhere(store, url):
    other = PostgresLightningStore(url)
    ids = [(await store.enqueue_rollout(1)).rollout_id]
    waiting = asyncio.create_task(other.wait_for_rollouts(rollout_ids=ids, timeout=30))
    await asyncio.sleep(0.3)
    await store.delete_rollouts(ids)
    assert await asyncio.wait_for(waiting, 5) == []
    await other.close()


async def test_a_call_may_have_more_keys_than_postgresql_can_lock(store):
    keys = [f"key {number}" for number in range(40_000)]
    assert await store.delete_documents("kind", keys) == 0
    tasks = [EnqueueRolloutRequest(input=1, key=key) for key in keys[:5_000]]
    first = await store.enqueue_many_rollouts(tasks)
    assert await store.enqueue_many_rollouts(tasks[::-1]) == first[::-1]
