"""Runners, algorithms and stores on a disk that fills up, fails, and works again."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.plugins.server.store_calls import store_process

import agl

# What a run of these tests waits for at most; it takes a few seconds where nothing else runs.
PATIENCE = 60.0


async def health(url: str) -> tuple[int, dict[str, Any], Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/agl/health") as response:
        return response.status, await response.json(), response.headers


@agl.rollout
async def agent(task: int) -> float:
    agl.emit_message("x" * 20_000)
    return float(task)


@pytest.mark.sqlite
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits that another process can set")
async def test_run_goes_on_after_the_disk_of_its_store_failed(tmp_path: Path) -> None:
    """A write beyond the limit of a process is an I/O error to SQLite, as of a broken disk."""
    import resource

    file = tmp_path / "agl.db"
    async with store_process(file) as (process, url):
        client = agl.LightningStoreClient(url)
        tasks = [agl.EnqueueRolloutRequest(input=n) for n in range(10)]
        rollouts = await client.enqueue_many_rollouts(tasks)
        size = os.stat(f"{file}-wal").st_size
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))

        runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=10)

        async def run() -> None:
            with runner.run_context(agent=agent, store=client):
                await runner.iter()

        running = asyncio.create_task(run())
        async with asyncio.timeout(PATIENCE):
            while (await health(url))[0] == 200:
                assert not running.done()
                await asyncio.sleep(0.05)
        status, answer, headers = await health(url)
        assert (status, answer["status"]) == (503, "failing")
        assert answer["error_type"] == "StoreDiskError"
        assert "disk I/O error" in answer["detail"]
        assert headers["Retry-After"] == "1"
        impatient = agl.LightningStoreClient(url, retry_delays=())
        with pytest.raises(agl.errors.StoreDiskError, match="disk I/O error"):
            await impatient.enqueue_rollout("x" * 1_000_000)
        assert not running.done()

        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        async with asyncio.timeout(PATIENCE):
            await running
        ids = [rollout.rollout_id for rollout in rollouts]
        ended = await client.wait_for_rollouts(rollout_ids=ids, timeout=0)
        assert [rollout.status for rollout in ended] == ["succeeded"] * 10
        for rollout in ended:
            spans = await client.query_spans(rollout.rollout_id)
            assert agl.find_final_reward(spans) == rollout.input
            assert len(await client.query_attempts(rollout.rollout_id)) == 1
        assert (await health(url))[0] == 200
        await client.close()
        await impatient.close()
