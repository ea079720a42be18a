"""An agent in JavaScript that claims its rollouts itself, over HTTP, and needs no Python."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from gateway_run import gateway_of
from processes import node_folder
from scene import reply
from tests.stores import served

from agl_adapters import TraceToRows

pytestmark = pytest.mark.timeout(300)


async def test_a_worker_in_javascript_leaves_a_row(memory_store, once):
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = await asyncio.to_thread(node_folder)
    shutil.copy(Path(__file__).with_name("worker.mjs"), folder)
    async with served(memory_store) as (server, _), gateway_of(reply, memory_store) as proxy:
        await memory_store.add_resources({"llm": proxy.as_resource()})
        queued = await memory_store.enqueue_rollout("What is the weather in Paris?")
        process = await asyncio.create_subprocess_exec(
            *("node", str(folder / "worker.mjs")),
            env={**os.environ, "STORE_URL": server.endpoint},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert (process.returncode, output.strip()) == (0, b"1")
    rollout = await memory_store.get_rollout_by_id(queued.rollout_id)
    assert rollout is not None
    assert rollout.status == "succeeded"
    rows = TraceToRows().adapt(list(await memory_store.query_spans(queued.rollout_id)))
    assert [(len(row.call_ids), row.reward) for row in rows.rows] == [(1, 1.0)]
    assert rows.ledger.exclusions == []
