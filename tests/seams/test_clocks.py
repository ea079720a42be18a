"""A runner on a machine whose clock is wrong, and the store that judges its heartbeats."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import agl

RUNNER = """
import asyncio, sys, time

real = time.time
time.time = lambda: real() + float(sys.argv[2])

import agl

@agl.rollout
async def agent(task):
    print("at work", flush=True)
    await asyncio.sleep(task)
    return 1.0

async def main():
    runner = agl.LitAgentRunner(agl.OtelTracer(), heartbeat_interval=0.2, max_rollouts=1)
    store = agl.LightningStoreClient(sys.argv[1])
    with runner.run_context(agent=agent, store=store):
        await runner.iter()
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[agl.LightningStoreServer]:
    store = agl.SqliteLightningStore(tmp_path / "agl.db", scan_interval_seconds=0.05)
    server = agl.LightningStoreServer(store, port=0)
    await server.start()
    yield server
    await server.close()


@contextlib.asynccontextmanager
async def runner_with_skew(server, skew) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A runner process whose clock is off by so many seconds, and whose agent is at work."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNNER, server.endpoint, str(skew), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"at work\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
async def test_runner_with_a_wrong_clock_is_not_held_for_lost(server, skew) -> None:
    # Longer than a heartbeat takes on any busy machine, and shorter than the skew.
    config = agl.RolloutConfig(unresponsive_seconds=60)
    rollout = await server.enqueue_rollout(4.0, config=config)
    async with runner_with_skew(server, skew):
        (ended,) = await server.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
    assert ended.status == "succeeded"
    (attempt,) = await server.query_attempts(rollout.rollout_id)
    assert (attempt.status, attempt.error) == ("succeeded", None)
    assert attempt.start_time <= (attempt.last_heartbeat_time or 0) <= (attempt.end_time or 0)


async def test_dead_runner_whose_clock_was_ahead_is_noticed(server) -> None:
    config = agl.RolloutConfig(unresponsive_seconds=1)
    rollout = await server.enqueue_rollout(3600.0, config=config)
    async with runner_with_skew(server, 3600.0) as process:
        process.send_signal(signal.SIGKILL)
        await server.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
    attempt = await server.get_latest_attempt(rollout.rollout_id)
    assert attempt.status == "unresponsive"
