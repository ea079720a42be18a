"""0.1's interface, with one end of ours and one of the original.

``AGL_PEER_PYTHON`` is the interpreter of an environment with ``agentlightning==0.3.0``.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import IO

import pytest

import agentlightning as agl
from agentlightning.client import AgentLightningClient
from agentlightning.server import AgentLightningServer
from agl_http.server import bind

from .peer_of_0_1 import Agent

PEER = os.environ.get("AGL_PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer_of_0_1.py")
TOKEN = "a-token-that-is-long-enough"

pytestmark = [
    pytest.mark.plugins,
    pytest.mark.skipif(PEER is None, reason="AGL_PEER_PYTHON is not set"),
]


def start(*arguments: str) -> "subprocess.Popen[str]":
    assert PEER is not None
    return subprocess.Popen(
        [PEER, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    )


def wait_until_ready(output: IO[str]) -> None:
    if not any(line.startswith("READY") for line in output):
        raise AssertionError("the original's server ended before it was ready")


def test_our_trainer_does_the_tasks_of_the_originals_server() -> None:
    with bind("127.0.0.1", 0) as kept:
        port = kept.getsockname()[1]
    server = start("server", str(port))
    try:
        assert server.stdout is not None
        wait_until_ready(server.stdout)
        client = AgentLightningClient(f"http://127.0.0.1:{port}", poll_interval=0.1)
        agl.Trainer(n_workers=1, max_tasks=4, tracer=agl.OtelTracer).fit(Agent(), client)
        rest = server.communicate(timeout=60)[0].splitlines()
    finally:
        server.kill()
        server.wait()
    reports = [json.loads(line) for line in rest if line.startswith('{"rollout_id"')]
    assert [report["final_reward"] for report in reports] == [0.5, 0.25, None, 1.0]
    assert reports[1]["triplets"][0]["prompt"] == {"token_ids": [1]}
    assert reports[2]["task"]["input"] == {"x": "raises"}
    assert reports[2]["metadata"]["error"] == "ValueError: boom"


@pytest.mark.parametrize("token", [None, TOKEN], ids=["no token", "token in the address"])
async def test_the_originals_trainer_does_the_tasks_of_our_server(token: str | None) -> None:
    server = AgentLightningServer(port=0, token=token)
    await server.start()
    try:
        prompt = agl.PromptTemplate(template="0.{x}", engine="f-string")
        resources_id = await server.update_resources({"prompt": prompt})
        ids = [await server.queue_task({"x": x}, mode="train") for x in ("5", "triplets", "raises")]
        ids.append(await server.queue_task({"x": ""}, mode="val", resources_id=resources_id))
        worker = start("client", server.endpoint)
        try:
            reports = [await server.poll_completed_rollout(each, timeout=90) for each in ids]
            output = worker.communicate(timeout=60)[0]
        finally:
            worker.kill()
            worker.wait()
    finally:
        await server.stop()
    assert None not in reports, output
    rewards = [report and report.final_reward for report in reports]
    assert rewards == [0.5, 0.25, None, 1.0]
    triplets = reports[1] and reports[1].triplets
    assert triplets
    assert triplets[0].prompt == {"token_ids": [1]}
