"""A store that nobody closed: the garbage collector finds it, or the process ends."""

import gc
import threading

from tests.interpreter import python

import agl

LEAVES_WORK = """
import sys, time
from pathlib import Path
import agl
from agl_sqlite.writer import Job

def write(tables, now):
    time.sleep(1.5)  # longer than the garbage collector waits
    Path("written").touch()

store = agl.SqliteLightningStore("store.db")
store._writer.submit(Job(write))
"""


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


def test_process_that_ends_waits_for_what_was_submitted(tmp_path):
    done = python("-c", LEAVES_WORK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "written").exists()
