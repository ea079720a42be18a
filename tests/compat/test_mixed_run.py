"""0.3's own package and ours in one run: one store, runners and algorithms of both.

AGL_PEER_PYTHON names the Python of an environment with ``agentlightning==0.3.0`` and ``openai``.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import agl
from agl_testing.echo_llm import EchoLLM

PEER = os.environ.get("AGL_PEER_PYTHON", "")
SCRIPT = str(Path(__file__).parent / "mixed_script.py")
TASKS = 30
TOKEN = "a-token-of-the-test-1"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PEER, reason="needs AGL_PEER_PYTHON, a Python with agentlightning 0.3.0"
    ),
]


def start(*command: str, **variables: str) -> subprocess.Popen[str]:
    """A process of one of the two environments, which does not see the other's packages."""
    ours = command[0] == sys.executable
    environment = {k: v for k, v in os.environ.items() if ours or k != "PYTHONPATH"}
    # No look for prices on the network, which LiteLLM else waits for.
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@asynccontextmanager
async def our_server() -> AsyncIterator[str]:
    """The address of a server of ours, with its token."""
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", 0, token=TOKEN)
    await server.start()
    try:
        yield server.address.replace("//", f"//agl:{TOKEN}@")
    finally:
        await server.stop()


async def test_runners_and_algorithms_of_both_packages_share_a_store(echo_llm: EchoLLM) -> None:
    pythons = (sys.executable, PEER)
    processes: list[subprocess.Popen[str]] = []
    async with our_server() as address:
        try:
            store = agl.LightningStoreClient(address)
            processes += [start(python, SCRIPT, "runner", address) for python in pythons]
            while len(await store.query_workers()) < len(pythons):
                assert all(runner.poll() is None for runner in processes)
                await asyncio.sleep(0.2)
            role = {"AGL_MANAGED_STORE": "0", "AGL_CURRENT_ROLE": "algorithm"}
            algorithms = [
                start(python, SCRIPT, "algorithm", address, echo_llm.url, str(TASKS), **role)
                for python in pythons
            ]
            processes += algorithms
            found = []
            for algorithm in algorithms:
                out, errors = await asyncio.to_thread(algorithm.communicate)
                assert algorithm.returncode == 0, errors[-4000:]
                found.append(json.loads(out.strip().splitlines()[-1]))
            await store.close()
        finally:
            for process in processes:
                process.terminate()
                process.communicate()
    for rollouts in found:
        assert [rollout["status"] for rollout in rollouts] == ["succeeded"] * TASKS
        assert [rollout["reward"] for rollout in rollouts] == [1.0] * TASKS
        packages = Counter(rollout["package"] for rollout in rollouts)
        assert set(packages) == {"ours", "theirs"}, packages
    # Only our algorithm brought a gateway, which recorded the calls of both runners' agents.
    calls = Counter((rollout["package"], rollout["calls"]) for rollout in found[0])
    assert set(calls) == {("ours", 1), ("theirs", 1)}, calls
