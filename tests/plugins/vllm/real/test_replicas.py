"""Two servers of the real vLLM: one is killed while it answers, and both get the next weights."""

import asyncio

import pytest
import torch
from tests.waiting import until

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_models.processes.engines import EngineServer

from .conftest import ARGUMENTS, Weights
from .test_run import ask, servers

pytestmark = pytest.mark.timeout(1800)  # each starts in a minute or two, one of them twice


async def test_one_of_two_replicas_is_killed_and_both_have_the_next_weights(weights, tmp_path):
    server = EngineServer(
        *("vllm", tmp_path / "serving", tmp_path / "vllm.log", weights.write),
        *(ARGUMENTS, 900.0, {"seed": 0, "dtype": "float32"}),
        **{"shares_gpu": False, "replicas": 2},
    )
    asked = {"temperature": 0.0, "max_tokens": 16, "logprobs": True, "return_token_ids": True}

    async def gap_of(url, of):
        """How far the answer of a replica is from these weights."""
        answer = await ask(url, "What is the capital of France?", model="policy", **asked)
        (choice,) = answer["choices"]
        said = torch.tensor([one["logprob"] for one in choice["logprobs"]["content"]])
        return (of.logprobs(answer["prompt_token_ids"], choice["token_ids"]) - said).abs().max()

    store = agl.InMemoryLightningStore()
    async with server.serving() as served:
        urls = served.litellm_params["api_base"]
        assert max([await gap_of(url, weights) for url in urls]) < 1e-3
        entry = {"model_name": "policy", "litellm_params": served.litellm_params}
        proxy = agl.LLMProxy(store=store, model_list=[entry], open=True)
        await proxy.start()
        rollouts = [await store.start_rollout(input=str(n)) for n in range(8)]
        calls = []
        for one in rollouts:
            url = proxy.as_resource(one.rollout_id, one.attempt.attempt_id).endpoint
            calls.append(asyncio.create_task(ask(url, "Tell me a story.", model="policy", **asked)))
        await until(lambda: min(one.in_flight for one in proxy._backends.of("policy")) > 0)
        victim = next(one for one in servers() if "serve" in one.cmdline())
        victim.kill()
        await asyncio.gather(*calls)  # each raises for a status that is no 200
        await proxy.flush()
        for one in rollouts:
            (span,) = await store.query_spans(one.rollout_id)
            assert span.status.status_code == "OK"
            assert len(span.attributes[Key.RESPONSE_TOKEN_IDS]) == 16
        await proxy.stop()

        def update():
            with server.updating():  # when the new process answers
                weights.change("_proj", 0.02)

        before = Weights(weights.folder)
        await asyncio.to_thread(update)
        assert max([await gap_of(url, weights) for url in urls]) < 1e-3
        assert min([await gap_of(url, before) for url in urls]) > 0.05
    assert not servers()
