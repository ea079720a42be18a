"""A store that nobody closed, which the garbage collector finds in the middle of something."""

import gc
import threading

import pytest

from agl_postgres.store import PostgresLightningStore


@pytest.mark.parametrize("in_the_middle_of", ["threading", "ring"])
async def test_store_that_is_collected_stops_nobody(url, in_the_middle_of):
    store = PostgresLightningStore(url)
    await store.enqueue_rollout(1)
    ours = store._doorbell._thread, store._writer._thread
    is_ring = in_the_middle_of == "ring"
    with store._doorbell._lock if is_ring else threading._active_limbo_lock:
        del store
        gc.collect()
    for thread in ours:
        thread.join()
