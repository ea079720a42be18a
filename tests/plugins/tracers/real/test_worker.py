"""An agent in JavaScript that claims its rollouts itself, over HTTP, and needs no Python."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from gateway_run import proxy_before
from processes import node_folder
from scene import reply

import agl
from agl_adapters import TraceToRows
from agl_testing.echo_llm import EchoLLM

pytestmark = pytest.mark.timeout(300)


async def test_a_worker_in_javascript_leaves_a_row(memory_store, tracer_name):
    if tracer_name != "otel":
        pytest.skip("no tracer takes part")
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = await asyncio.to_thread(node_folder)
    shutil.copy(Path(__file__).with_name("worker.mjs"), folder)
    server = agl.LightningStoreServer(memory_store, port=0)
    await server.start()
    with EchoLLM(reply) as llm:
        proxy = proxy_before(llm, memory_store)
        await proxy.start()
        try:
            await memory_store.add_resources({"llm": proxy.as_resource()})
            queued = await memory_store.enqueue_rollout("What is the weather in Paris?")
            process = await asyncio.create_subprocess_exec(
                *("node", str(folder / "worker.mjs")),
                env={**os.environ, "STORE_URL": server.endpoint},
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate()
        finally:
            await proxy.stop()
            await server.close()
    assert (process.returncode, output.strip()) == (0, b"1")
    rollout = await memory_store.get_rollout_by_id(queued.rollout_id)
    assert rollout is not None
    assert rollout.status == "succeeded"
    rows = TraceToRows().adapt(list(await memory_store.query_spans(queued.rollout_id)))
    assert [(len(row.call_ids), row.reward) for row in rows.rows] == [(1, 1.0)]
    assert rows.ledger.exclusions == []
