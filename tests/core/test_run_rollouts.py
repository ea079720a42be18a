"""What a new start of a run does with the rollouts that an earlier one left."""

from agl.runs.rollouts import LEFT_OVER, cancel_leftovers
from agl.store.memory import InMemoryLightningStore


async def test_what_runners_had_is_cancelled_and_what_the_algorithm_began_is_left_to_it() -> None:
    store = InMemoryLightningStore()
    of_run = {"run": "r", "generation": 1}
    own = await store.start_rollout("a critique", metadata=of_run, key="apo/critique/1")
    claimed = await store.enqueue_rollout("claimed", metadata=of_run)
    assert await store.dequeue_rollout("w") is not None
    queued = await store.enqueue_rollout("queued", metadata=of_run)
    others = await store.enqueue_rollout("queued", metadata={"run": "other"})
    await cancel_leftovers(store, "r")
    found = {one.rollout_id: one.status for one in await store.query_rollouts()}
    assert found == {
        own.rollout_id: "preparing",
        claimed.rollout_id: "cancelled",
        queued.rollout_id: "cancelled",
        others.rollout_id: "queuing",
    }
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    worker = await store.get_worker_by_id("w")
    assert (attempt and attempt.status, attempt and attempt.error) == ("failed", LEFT_OVER)
    assert worker is not None
    assert worker.status == "idle"
    # The next start goes on with it.
    again = await store.start_rollout("a critique", metadata=of_run, key="apo/critique/1")
    await store.update_attempt(again.rollout_id, "latest", status="succeeded")
    ended = await store.get_rollout_by_id(own.rollout_id)
    assert ended is not None
    assert ended.status == "succeeded"
