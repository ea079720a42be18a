"""Stores of runs, read beside the process that has them open."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from tests.stores import opened

import agl
from agl.errors import StoreUnavailableError
from agl_runs.local_runs import runs_here
from agl_sqlite.file import open_to_read

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("can_be_logged", [True, False])
async def test_who_reads_a_store_sees_what_another_one_writes_later(tmp_path, can_be_logged):
    file = tmp_path / "store.db"

    async def add() -> None:
        async with opened(file) as store:
            await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input="x" * 3000)] * 50)

    await add()
    if not can_be_logged:  # as where the folder cannot be written
        (tmp_path / "store.db-shm").mkdir()
    with closing(open_to_read(file)) as connection:
        counted = connection.execute("SELECT count(*) FROM rollout").fetchone()
        if can_be_logged:
            await add()
            counted += connection.execute("SELECT count(*) FROM rollout").fetchone()
    assert counted == ((50, 100) if can_be_logged else (50,))
    assert not can_be_logged or os.listdir(tmp_path) == ["store.db"]


async def test_records_in_a_log_that_cannot_be_read_are_not_passed_over(tmp_path):
    killed = tmp_path / "agl-runs" / "killed"
    killed.mkdir(parents=True)
    async with opened(tmp_path / "store.db") as store:
        await store.enqueue_rollout("acknowledged")
        for name in ("store.db", "store.db-wal"):
            shutil.copy(tmp_path / name, killed)
    (killed / "store.db-shm").symlink_to("nowhere")  # as where the folder cannot be written
    with pytest.raises(StoreUnavailableError, match=r"'store.db-wal' beside it has records"):
        open_to_read(killed / "store.db")
    (run,) = runs_here(killed)
    assert "'store.db-wal' beside it has records" in (run.problem or "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no database" * 99, "file is not a database. No store, or damaged"),
        (b"", "it has no tables"),
        (b"CREATE TABLE theirs (a)", "no store of agl"),
    ],
)
def test_readers_say_of_a_file_that_it_is_no_store(content, told, tmp_path):
    file = tmp_path / "store.db"
    if content.startswith(b"CREATE"):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(content.decode())
    else:
        file.write_bytes(content)
    with pytest.raises(StoreUnavailableError, match=f"store.db'.*{told}"):
        open_to_read(file)
