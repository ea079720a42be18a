"""The fixtures that plugin authors get with agl-core."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from agl.store.memory import InMemoryLightningStore
from agl_testing.echo_llm import EchoLLM


async def test_memory_store_is_empty_and_works(memory_store: InMemoryLightningStore) -> None:
    assert len(await memory_store.query_rollouts()) == 0
    rollout = await memory_store.enqueue_rollout({"x": 1})
    assert rollout.status == "queuing"


def test_memory_store_works_from_a_plain_test_too(memory_store: InMemoryLightningStore) -> None:
    assert memory_store.capabilities.get("async_safe")


def test_echo_llm_answers(echo_llm: EchoLLM) -> None:
    with urllib.request.urlopen(f"{echo_llm.url}/models", timeout=100) as response:
        assert json.load(response)["data"]


def test_fixtures_import_nothing_before_a_test_asks() -> None:
    code = """
import sys, agl_testing.fixtures
heavy = {"pydantic", "pluggy", "aiohttp", "fastapi", "agl.plugins.hooks", "agl.store"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # pytest itself brings pluggy.
    assert done.stdout.split() == ["['pluggy']"]


def test_tracer_contract_runs_without_options_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pytest, agl\n"
        "from agl_testing.tracer_contract import *\n"
        "@pytest.fixture\n"
        "def tracer():\n"
        "    return agl.OtelTracer()\n"
    )
    options = ("-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-k", "emitters or own_task")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
