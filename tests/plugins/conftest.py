"""The real line (store, runner, gateway, adapter), and runs in processes that a test kills."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from .line import run_line

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def line():
    """Runs an algorithm, with its default adapter, and one runner beside it."""
    import agl
    from agl.algorithm.adapter import Adapter
    from agl.plugins.build import build_component

    store = agl.InMemoryLightningStore()

    async def run(agent, algorithm, train=None, val=None, gateway=None):
        algorithm.set_adapter(
            build_component(algorithm.default_adapter, group="agl.adapters", expected_type=Adapter)
        )
        algorithm.set_llm_proxy(gateway or agl.LLMProxy())
        return await run_line(algorithm, store, agent, train, val)

    run.store = store
    yield run
    await store.close()


@pytest.fixture
async def start():
    """Starts the run of ``killed_run.py`` in a process group of its own."""
    processes = []

    async def begin(given):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.plugins.killed_run",
            json.dumps(given),
            cwd=ROOT,
            start_new_session=True,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def kill_when(process, there):
    """Kill a process, and what it started, once something is there."""
    for _ in range(10_000):
        if there():
            break
        assert process.returncode is None, (await process.stderr.read()).decode()
        await asyncio.sleep(0.005)
    else:
        raise AssertionError("it did not come")
    os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()


async def end(process):
    """Wait until a process has done its work."""
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def everything_written(store, folder):
    """The texts of a run's files, and of what its store has."""
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    found = [*(await store.query_resources()).items, *(await store.query_rollouts()).items]
    for rollout in await store.query_rollouts():
        found += await store.query_spans(rollout.rollout_id)
    texts += [one.model_dump_json() for one in found]
    assert sum(map(len, texts)) > 10_000
    return texts
