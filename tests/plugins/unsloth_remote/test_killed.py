"""Runs that are killed with SIGKILL, and started again: nothing is paid for twice."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from .agents import CAPITALS

pytestmark = [
    pytest.mark.timeout(300),
    # The SDK leaves a connection of each of its clients to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

SCRIPT = Path(__file__).with_name("killed_run.py")


@pytest.fixture
async def start():
    """Starts the run of ``killed_run.py`` in a process group of its own."""
    processes = []

    async def begin(given):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            json.dumps(given),
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
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_azure_is_not_asked_for_a_second_job(azure, start, tmp_path):
    given = {
        "type": "azure-sft",
        "token": azure.token,
        "store": str(tmp_path / "store.db"),
        "tasks": list(CAPITALS),
        "options": {
            "endpoint": azure.url,
            "base_deployment": "base",
            "base_model": "gpt-base-2026-01-01",
            "subscription_id": "sub-1",
            "resource_group": "group-1",
            "account_name": "acme",
            "api_key": azure.key,
            "management_url": azure.url,
            "poll_seconds": 0.02,
            "iterations": 1,
            "rollouts_per_task": 24,
            "data_filter_ratio": 1.0,
            "min_reward": 1.0,
            "run_dir": str(tmp_path / "run"),
            "show_progress": False,
        },
    }
    azure.hold_jobs = True
    await kill_when(await start(given), lambda: azure.jobs)
    asked = azure.log.count("POST /openai/v1/chat/completions")
    azure.hold_jobs = False
    await end(await start(given))
    assert [job["status"] for job in azure.jobs.values()] == ["succeeded"]
    assert azure.log.count("POST /openai/v1/chat/completions") == asked == 72
    assert azure.files == {}
    stored = (tmp_path / "store.db").read_bytes()
    assert azure.key.encode() not in stored
    assert azure.token.encode() not in stored


async def test_tinker_trains_again_what_was_not_saved_and_no_more(
    service, tokenizer, start, tmp_path
):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    given = {
        "type": "tinker",
        "tokenizer": str(tmp_path / "tokenizer"),
        "store": str(tmp_path / "store.db"),
        "tasks": ["one", "two", "three"],
        "options": {
            "base_model": "tiny/table",
            "api_key": service.key,
            "base_url": service.server.url,
            "learning_rate": 0.5,
            "iterations": 4,
            "rollouts_per_task": 8,
            "max_tokens": 2,
            "run_dir": str(tmp_path / "run"),
            "show_progress": False,
        },
    }
    await kill_when(await start(given), lambda: service.steps >= 2)
    await end(await start(given))
    assert 4 <= len(service.losses) <= 5
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["iterations"] == 4
    assert len(summary["rewards"]) == 4
    # At most the rollouts that were under way when it was killed ran twice.
    assert service.log.count("POST asample") <= 4 * 24 + 24
    assert service.key.encode() not in (tmp_path / "store.db").read_bytes()
