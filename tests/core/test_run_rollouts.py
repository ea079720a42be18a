"""What a new start of a run does with the rollouts that an earlier one left."""

from typing import Any

from agl.types import PaginatedResult, Rollout
from agl_runs.result import result_of
from agl_runs.rollouts import LEFT_OVER, cancel_leftovers


async def test_what_runners_had_is_cancelled_and_what_the_algorithm_began_is_left_to_it(
    store, monkeypatch
):
    monkeypatch.setattr("agl_runs.rollouts.PAGE", 1)  # each cancellation changes what is queried
    of_run = {"run": "r", "generation": 1}
    own = await store.start_rollout("a critique", metadata=of_run, key="apo/critique/1")
    claimed = await store.enqueue_rollout("claimed", metadata=of_run)
    assert await store.dequeue_rollout("w") is not None
    queued = await store.enqueue_rollout("queued", metadata=of_run)
    others = await store.enqueue_rollout("queued", metadata={"run": "other"})
    await cancel_leftovers(store, "r")
    found = {one.rollout_id: one.status for one in await store.query_rollouts()}
    left = dict.fromkeys((claimed.rollout_id, queued.rollout_id), "cancelled")
    assert found == {own.rollout_id: "preparing", others.rollout_id: "queuing", **left}
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    worker = await store.get_worker_by_id("w")
    assert (attempt.status, attempt.error) == ("failed", LEFT_OVER)
    assert worker.status == "idle"
    # The next start goes on with it.
    again = await store.start_rollout("a critique", metadata=of_run, key="apo/critique/1")
    await store.update_attempt(again.rollout_id, "latest", status="succeeded")
    assert (await store.get_rollout_by_id(own.rollout_id)).status == "succeeded"


async def test_a_run_reads_and_counts_none_but_its_own_rollouts(store, monkeypatch):
    mine = await store.enqueue_rollout("mine", metadata={"run": "r"})
    for metadata in (None, {"run": "other"}, {"step": 1}):
        await store.enqueue_rollout("another's", metadata=metadata)
    query, read = store.query_rollouts, set[str]()

    async def noted(**arguments: Any) -> PaginatedResult[Rollout]:
        page = await query(**arguments)
        read.update(rollout.rollout_id for rollout in page)
        return page

    monkeypatch.setattr(store, "query_rollouts", noted)
    assert (await result_of(store, "r", None)).rollouts == {"queuing": 1}
    await cancel_leftovers(store, "r")
    assert read == {mine.rollout_id}
    assert (await result_of(store, "", None)).rollouts == {"cancelled": 1, "queuing": 3}
