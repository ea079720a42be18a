"""Two starts of one run over a store server: the older one was only stopped, and wakes up."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

import agl
from agl_records.ledger.ledger import load_parts
from agl_runs.store import query_runs

from .scene import Scene

SCRIPT = """
import json, platform
from agl_records.ledger.documents import put_parts
options = json.loads((HERE / "options.json").read_text())
platform.node = lambda: options["host"]  # else a process that lives would be seen

@agl.algo
async def algorithm(store):
    # The runner of a start that was stopped may hold a claim, and is given what comes next.
    again = agl.RolloutConfig(unresponsive_seconds=2, max_attempts=9,
                              retry_condition=["unresponsive"])
    for step in range(options["steps"]):
        rollout = await store.enqueue_rollout(step, config=again)
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await store.add_resources({"prompt": agl.PromptTemplate(template="x", engine="f-string")})
        await put_parts(store, [agl.LedgerPart(rollout_id=rollout.rollout_id, run="both")])
    await asyncio.to_thread(wait_for, options["waits_for"])

@agl.rollout
def agent(task: int) -> float:
    return 1.0

store = agl.LightningStoreClient(options["url"])
agl.Trainer(algorithm=algorithm, store=store, strategy="shm", run="both", run_dir=HERE / "run",
            resume=options["host"] == "b").fit(agent)
"""


@pytest.fixture
def scenes(tmp_path: Path) -> Generator[list[Scene]]:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    scenes = [Scene(folder) for folder in folders]
    yield scenes
    for process in [process for scene in scenes for process in scene.left()]:
        process.kill()


@pytest.mark.parametrize("steps", [1000, 3], ids=["writes", "is at its end"])
async def test_a_start_that_another_one_has_replaced_writes_nothing_and_says_so(scenes, steps):
    store = agl.InMemoryLightningStore()
    server = agl.LightningStoreServer(store, "127.0.0.1", 0)
    await server.start()

    async def written() -> list[int]:
        counts = await store.statistics()
        parts = await load_parts(store, lost=None)
        return [counts["total_rollouts"], counts["total_resources"], len(parts)]

    def start(scene: Scene, **options: object) -> "subprocess.Popen[bytes]":
        options |= {"url": server.endpoint}
        (scene.folder / "options.json").write_text(json.dumps(options))
        return scene.start(SCRIPT)

    older, newer = scenes
    first = start(older, host="a", steps=steps, waits_for="on")
    while (await written())[-1] < 3:
        assert first.poll() is None, older.errors.read_text()
    os.kill(first.pid, signal.SIGSTOP)
    second = start(newer, host="b", steps=2, waits_for="script.py")
    assert await asyncio.to_thread(second.wait) == 0, newer.errors.read_text()
    before = await written()
    (older.folder / "on").touch()
    os.kill(first.pid, signal.SIGCONT)
    assert await asyncio.to_thread(first.wait) == 1
    said = f"another start has taken over run 'both': start 2, process {second.pid} on b"
    assert said in older.errors.read_text()
    assert await written() == before
    (run,) = await query_runs(store)
    await server.stop()
    assert run.status == "finished"
    assert [one.outcome for one in run.generations] == ["stopped", "finished"]
    assert said in str(run.generations[0].error)
