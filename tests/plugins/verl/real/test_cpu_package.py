"""The parts of ``verl_cpu`` and ``running`` by themselves; nothing of Ray is started."""

import asyncio
import os
import signal
import subprocess
import time
import uuid

import pytest

pytest.importorskip("verl")

import running
import torch
from verl_cpu.inference_server import InferenceServer

pytestmark = pytest.mark.timeout(300)
LOGPROBS = {"logprobs": True, "ignore_eos": True, "max_tokens": 8}


@pytest.fixture
def server(tiny_model):
    return InferenceServer(str(tiny_model), response_length=6)


async def generate(server, **params):
    return await server.generate([5, 6, 7], params, request_id="r")


async def test_server_gives_the_log_probabilities_of_its_model(server):
    out = await generate(server, **LOGPROBS, temperature=0.7)
    assert len(out.token_ids) == 8
    assert out.stop_reason == "completed"
    with torch.no_grad():
        logits = server.model(torch.tensor([[5, 6, 7, *out.token_ids]])).logits[0, 2:-1]
    expected = torch.log_softmax(logits / 0.7, -1)
    for row, token, logprob in zip(expected, out.token_ids, out.log_probs, strict=True):
        assert logprob == pytest.approx(float(row[token]), abs=1e-5)


async def in_flight(server):
    """A call that is running for certain: its first token waits for us."""
    task = asyncio.create_task(generate(server, max_tokens=300, ignore_eos=True, logprobs=True))
    while not server._running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return task


async def test_calls_are_cut_off_at_a_weight_update_and_say_so(server):
    await server.set_weights(server.model.state_dict(), 3)
    task = await in_flight(server)
    await server.abort_all_requests()
    out = await task
    assert out.stop_reason == "aborted"
    assert len(out.token_ids) == len(out.log_probs) < 300
    assert out.extra_fields == {"global_steps": 3}
    later = asyncio.create_task(generate(server, max_tokens=2))
    await asyncio.sleep(0.05)
    assert not later.done()  # waits for the weights
    await server.set_weights(server.model.state_dict(), 4)
    await server.resume_generation()
    assert (await later).extra_fields == {"global_steps": 4}


async def test_weights_that_do_not_fit_are_refused(server):
    state = dict(server.model.state_dict())
    state["stray"] = state.pop("lm_head.weight")
    with pytest.raises(RuntimeError, match=r"missing \['lm_head.weight'\], unknown \['stray'\]"):
        await server.set_weights(state, 1)


def test_a_process_that_outlives_its_run_is_seen_and_ended(monkeypatch):
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
    mark = uuid.uuid4().hex
    given = {"env": os.environ | {running.MARK: mark}, "start_new_session": True}
    orphan = subprocess.Popen(["sleep", "600"], **given)
    while not running.marked(mark):  # /proc shows its environment a little later
        time.sleep(0.01)
    assert running.end_all(mark) == ["sleep 600"]
    assert orphan.wait(10) == -signal.SIGKILL
    assert running.end_all(mark) == []
