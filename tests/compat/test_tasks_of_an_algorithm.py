"""Clients of 0.1 do the rollouts of an algorithm of today, through the proxy."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from tests.models import entry
from tests.waiting import free_port

import agl
from agentlightning import (
    AgentLightningClient,
    LegacyAgentRunner,
    LitAgent,
    OtelTracer,
    TracerTraceToTriplet,
)
from agentlightning.verl.entrypoint import serve_tasks_of

from .test_server_of_0_1 import serving

pytestmark = pytest.mark.plugins


class Agent(LitAgent[Any]):
    """Calls the model by ``endpoint``, as scripts of 0.1 do."""

    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        llm = resources["main_llm"]
        answer = httpx.post(
            f"{llm.endpoint}/chat/completions",
            json={"model": llm.model, "messages": [{"role": "user", "content": task}]},
            headers={"Authorization": f"Bearer {llm.api_key}"},
        )
        answer.raise_for_status()
        return 0.5 if task in answer.json()["choices"][0]["message"]["content"] else 0.0


class Learns(agl.Algorithm):
    """Queues tasks, and keeps what came of them."""

    needs_gateway = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.came: list[tuple[str, float | None, int]] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        proxy: Any = self.get_llm_proxy()
        proxy.update_model_list([entry("tiny", self.url)])
        await self.publish_resources({"main_llm": proxy.as_resource()})
        store = self.get_store()
        queued = [await store.enqueue_rollout(task, mode="train") for task in train_dataset]
        ids = [rollout.rollout_id for rollout in queued]
        for ended in await store.wait_for_rollouts(rollout_ids=ids):
            spans = await store.query_spans(ended.rollout_id)
            calls = agl.TracerTraceToTriplet().adapt(spans)
            tokens = sum(len(call.response["token_ids"]) for call in calls)
            self.came.append((ended.status, agl.find_final_reward(spans), tokens))


def test_calls_of_0_1s_agents_are_recorded_for_their_rollouts(echo_llm, monkeypatch) -> None:
    monkeypatch.setenv("AGL_SERVER_TOKEN", "a-token-that-is-long-enough")
    port = free_port()
    client = AgentLightningClient(f"http://127.0.0.1:{port}", poll_interval=0.05)
    runner = LegacyAgentRunner(Agent(), client, OtelTracer(), TracerTraceToTriplet(), max_tasks=2)
    thread = threading.Thread(target=runner.iter, daemon=True)  # it polls for ever
    thread.start()
    algorithm = Learns(echo_llm.url)
    serve_tasks_of(algorithm, ["apple", "pear"], None, port=port)
    thread.join(20)
    assert len(algorithm.came) == 2
    for status, reward, tokens in algorithm.came:
        assert (status, reward) == ("succeeded", 0.5)
        assert tokens > 0, "the proxy recorded the call in its rollout"


async def test_resources_for_an_attempt_are_none_when_another_has_the_task() -> None:
    async with serving(task_timeout_seconds=0.2) as server:
        await server.update_resources({"llm": agl.ProxyLLM(endpoint="http://x/v1", model="m")})
        await server.queue_task("task")
        client = AgentLightningClient(server.endpoint, poll_interval=0.05)
        first, second = [await client.poll_next_task_async() for _ in range(2)]
        assert (second.rollout_id, second.num_claims) == (first.rollout_id, 2)
        assert first.resources_id is not None
        assert second.resources_id is not None
        assert first.resources_id != second.resources_id
        assert await client.get_resources_by_id_async(first.resources_id) is None
        update = await client.get_resources_by_id_async(second.resources_id)
        assert "/attempt/" in update.resources["llm"].endpoint


async def test_task_of_an_algorithm_whose_client_dies_is_handed_out_again() -> None:
    store = agl.InMemoryLightningStore()
    async with serving(task_timeout_seconds=0.2, store=store) as server:
        queued = await store.enqueue_rollout("task")
        client = AgentLightningClient(server.endpoint, poll_interval=0.05)
        await client.poll_next_task_async()
        again = await asyncio.wait_for(client.poll_next_task_async(), 20)
        assert (again.rollout_id, again.num_claims) == (queued.rollout_id, 2)
