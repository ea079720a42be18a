"""The page beside a run ends with it."""

import asyncio
import os
import re
from pathlib import Path
from types import SimpleNamespace

import agl
from agl_ui.run_hook import RunPages

from .stores import read


def opened(file):
    """How often this process has a file open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(one) == str(file)
        except FileNotFoundError:  # that of the listing
            continue
    return found


async def test_a_run_that_ended_has_left_its_file(tmp_path, capsys):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")
    await store.enqueue_rollout("t")
    beside = RunPages()
    run = SimpleNamespace(get_run_folder=lambda: tmp_path, get_run=lambda: ("r", 1))
    await beside.on_run_start(run, store)
    address = re.search(r"http\S+", capsys.readouterr().err)[0]
    bare, _, key = address.partition("?key=")
    port = bare.rstrip("/").rpartition(":")[2]
    page, cookie = f"{bare}s/{tmp_path.name}/rollouts", f"agl-ui-key-{port}={key}"
    assert "1 rollout match" in (await asyncio.to_thread(read, page, Cookie=cookie))[1]
    await beside.on_run_end()
    await store.close()  # SQLite keeps what was opened of a file as long as any of it is locked
    assert opened(file) == 0
