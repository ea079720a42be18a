"""The page beside a run ends with it."""

import asyncio
import os
import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import agl
from agl_ui.run_hook import RunPages


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
    asked = urllib.request.Request(f"{bare}s/{tmp_path.name}/rollouts")
    asked.add_header("Cookie", f"agl-ui-key-{port}={key}")

    def read():
        with urllib.request.urlopen(asked) as answer:
            return answer.read().decode()

    assert "1 rollout match" in await asyncio.to_thread(read)
    await beside.on_run_end()
    await store.close()  # SQLite keeps what was opened of a file as long as any of it is locked
    assert opened(file) == 0
