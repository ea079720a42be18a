"""Commands read a store that a run has open, or that lies where nothing may be written."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import agl
from agl.errors import StoreUnavailableError
from agl_views.tables.file_store import FileStore

AGL = str(Path(sys.executable).with_name("agl"))


def said(*arguments):
    done = subprocess.run([AGL, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_store_is_read_beside_who_has_it_open(tmp_path, is_open):
    path = tmp_path / "store.db"
    store = agl.SqliteLightningStore(path)
    rollout = await store.start_rollout("the task", worker_id="w")
    if not is_open:
        await store.close()
    where = ("--path", str(path))
    before = sorted(tmp_path.iterdir())
    assert rollout.rollout_id in said("rollouts", *where)
    assert "the task" in said("show", rollout.rollout_id, *where)
    said("spans", rollout.rollout_id, *where)
    said("ledger", str(path))
    assert sorted(tmp_path.iterdir()) == before
    if is_open:
        await store.close()


async def test_a_file_of_another_schema_is_not_read_as_ours(tmp_path):
    path = tmp_path / "store.db"
    store = agl.SqliteLightningStore(path)
    await store.enqueue_rollout("t")
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    beside = FileStore(path)
    with pytest.raises(StoreUnavailableError) as told:
        await beside.query_rollouts()
    assert f"store {str(path)!r}: made by a newer agl (schema 999" in str(told.value)
    await beside.close()
