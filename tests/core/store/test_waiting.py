import asyncio
import threading
import time
import weakref

from agl.store.memory import InMemoryLightningStore
from agl.types import RolloutConfig
from agl_sqlite import SqliteLightningStore
from agl_sqlite.writer import Job


async def test_claim_cancelled_in_the_same_moment_loses_nothing(store):
    for round_ in range(25):
        waiting = [asyncio.create_task(store.dequeue_rollout(wait_seconds=60)) for _ in range(3)]
        await asyncio.sleep(0.002)
        enqueueing = asyncio.create_task(store.enqueue_rollout(round_))
        await asyncio.sleep(0.0001 * round_)
        for task in waiting:
            task.cancel()
        await enqueueing
        done = await asyncio.gather(*waiting, return_exceptions=True)
        claimed = [one for one in done if not isinstance(one, BaseException)]
        # Either a call was too far to be cancelled, or the rollout is in the queue (again).
        claimed = claimed or [await store.dequeue_rollout(wait_seconds=4)]
        assert [one.input for one in claimed] == [round_]
        await store.update_attempt(claimed[0].rollout_id, "latest", status="succeeded")


async def test_claim_of_a_loop_that_closed_is_not_made(tmp_path):
    store = SqliteLightningStore(tmp_path / "agl.db")
    await store.enqueue_rollout("task")
    blocked = threading.Event()
    store._writer.submit(Job(lambda tables, now: blocked.wait(2.0)))

    async def claim_and_leave():
        task = asyncio.create_task(store.dequeue_rollout())
        await asyncio.sleep(0.02)
        task.cancel()

    # The writer is held up until the loop that claims is gone.
    await asyncio.to_thread(lambda: asyncio.run(claim_and_leave()))
    blocked.set()
    claimed = await store.dequeue_rollout(wait_seconds=4)
    assert (claimed.input, claimed.attempt.sequence_id) == ("task", 1)
    await store.close()


async def test_claim_that_nobody_received_is_put_back(tmp_path):
    store = SqliteLightningStore(tmp_path / "agl.db")
    await store.enqueue_rollout("task")
    claimed = await store.dequeue_rollout()
    job = Job(lambda tables, now: None, claimed_of=lambda result: result)
    store._writer.take_back(job, ([claimed], None))
    again = await store.dequeue_rollout(wait_seconds=4)
    assert (again.input, again.attempt.sequence_id) == ("task", 2)
    abandoned = (await store.query_attempts(again.rollout_id))[0]
    assert abandoned.error.type == "claim_abandoned"
    await store.close()


async def test_waiting_burns_no_cpu(store):
    waiting = [asyncio.create_task(store.dequeue_rollout(wait_seconds=0.5)) for _ in range(50)]
    await asyncio.sleep(0.1)
    begin = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - begin < 0.1
    await asyncio.gather(*waiting)


async def test_claim_ends_that_begins_to_wait_while_another_thread_closes_the_store(monkeypatch):
    store = InMemoryLightningStore()
    ticket = store._queue_waiters.ticket

    def closed_before(has_queued):
        closing = threading.Thread(target=lambda: asyncio.run(store.close()))
        closing.start()
        closing.join()
        return ticket(has_queued)

    monkeypatch.setattr(store._queue_waiters, "ticket", closed_before)
    async with asyncio.timeout(10):
        assert await store.dequeue_rollout(wait_seconds=60) is None


async def test_watchdog_runs_only_when_something_has_a_deadline():
    def watchdogs():
        return sum(thread.name == "agl-store-watchdog" for thread in threading.enumerate())

    before = watchdogs()
    store = InMemoryLightningStore(scan_interval_seconds=0.05)
    await store.start_rollout("task")
    assert watchdogs() == before
    await store.start_rollout("task", config=RolloutConfig(timeout_seconds=9))
    assert watchdogs() == before + 1
    await store.close()
    assert watchdogs() == before


async def test_forgotten_store_is_collected_with_its_watchdog():
    store = InMemoryLightningStore(scan_interval_seconds=0.02)
    await store.start_rollout("task", config=RolloutConfig(timeout_seconds=9))
    watchdog = store._watchdog._thread
    gone = weakref.ref(store)
    del store
    await asyncio.to_thread(watchdog.join, 2)
    assert not watchdog.is_alive()
    assert gone() is None
