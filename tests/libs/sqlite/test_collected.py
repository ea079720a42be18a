"""A store that nobody closed, and that the garbage collector finds."""

import gc
import threading

import agl


async def test_store_that_is_collected_while_threads_are_listed_stops_nobody(tmp_path):
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    await store.enqueue_rollout(1)
    with threading._active_limbo_lock:  # as ``threading.enumerate`` holds it
        del store
        gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("agl-store-writer"):
            thread.join()
    again = agl.SqliteLightningStore(tmp_path / "store.db")
    assert len(await again.query_rollouts()) == 1
    await again.close()
