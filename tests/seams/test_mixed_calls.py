"""Calls never land in another rollout, or somebody says so."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests import run_agents
from tests.models import entry

import agl
from agl.errors import ConfigError
from agl.types import resources
from agl_learning.collect.collector import Collector
from agl_testing.echo_llm import EchoLLM

openai = pytest.importorskip("openai")
pytest.importorskip("agl_gateway")
TASKS = [{"question": f"how far is {town}"} for town in ("Rome", "Oslo", "Bonn", "Lima")]


async def ask(llm: agl.LLM, endpoint: str, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    async with openai.AsyncOpenAI(base_url=endpoint, api_key="x", max_retries=0) as client:
        await client.chat.completions.create(model=llm.model, messages=messages)


@agl.rollout
async def by_environment(task: dict[str, str], llm: agl.LLM) -> float:
    """Has the address of its LLM in a variable of the process."""
    os.environ["TEST_BASE_URL"] = llm.endpoint
    await asyncio.sleep(0.1)
    for _ in range(2):
        await ask(llm, os.environ["TEST_BASE_URL"], task["question"])
    return 1.0


ALL_FOUR = threading.Barrier(4)


@agl.rollout
def by_environment_in_threads(task: dict[str, str], llm: agl.LLM) -> float:
    """The same as a plain function."""
    os.environ["TEST_BASE_URL"] = llm.endpoint
    ALL_FOUR.wait(30)
    for _ in range(2):
        asyncio.run(ask(llm, os.environ["TEST_BASE_URL"], task["question"]))
    ALL_FOUR.wait(30)  # an attempt that ends takes no more calls of the others
    return 1.0


@agl.rollout
async def by_itself(task: dict[str, str], llm: agl.LLM) -> float:
    """Keeps nothing global; it makes no call for one of the tasks, and several for others."""
    if "Oslo" in task["question"]:
        await asyncio.sleep(0.2)
        return 0.0
    await asyncio.gather(*(ask(llm, llm.endpoint, f"{task['question']} {n}") for n in range(3)))
    return 1.0


class Reads(agl.LitAgent[dict[str, str]]):
    """Gets the gateway's own address, which is no rollout's, and calls its model there or not."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        llm: agl.ProxyLLM = resources["llm"]
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        url = llm.endpoint if self.address == "endpoint" else llm.get_base_url(*ids)
        await ask(llm, url, task["question"])
        return 1.0


@contextlib.asynccontextmanager
async def gateway_of(store: agl.LightningStore) -> AsyncGenerator[agl.LLMProxy]:
    with EchoLLM(latency_seconds=0.05) as server:
        gateway = agl.LLMProxy(model_list=[entry("m", server.url)], store=store)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()


@contextlib.asynccontextmanager
async def running(agent, store, runners=1, **options) -> AsyncGenerator[None]:
    """Some runners in this process."""
    event = agl.ThreadingEvent()
    async with contextlib.AsyncExitStack() as stack:
        each = [run_agents.running(agent, store, event=event, **options) for _ in range(runners)]
        tasks = [await stack.enter_async_context(one) for one in each]
        try:
            yield
        finally:
            event.set()
            await asyncio.gather(*tasks)


async def collect(agent: agl.LitAgent[Any], tasks: list[Any], copies: int, **options: Any) -> Any:
    """A step of an algorithm; with ``runners``, several in this process."""
    store = agl.InMemoryLightningStore()
    async with gateway_of(store) as gateway, running(agent, store, **options):
        resources = await store.add_resources({"llm": gateway.as_resource(model="m")})
        collector = Collector(store, gateway, agl.TraceToRows(), agl.RolloutConfig())
        return await collector.collect(tasks, copies, "train", resources.resources_id, {})


SAID = "If the agent always calls its model, calls mix: a global client or environment variable"


@pytest.mark.parametrize(
    ("agent", "tasks", "options"),
    [
        (by_environment, TASKS, {"concurrency": 8}),
        (by_environment, TASKS[:1] * 4, {"concurrency": 4}),  # as well of one task
        (by_environment_in_threads, TASKS, {"runners": 4}),
    ],
)
async def test_step_of_mixed_calls_is_told_with_the_cause(agent, tasks, options, caplog) -> None:
    collected = await collect(agent, tasks, 1, **options)
    calls = [len(one.ran.calls) for one in collected.ended]
    assert sum(calls) == 2 * len(tasks)
    assert min(calls) == 0
    assert SAID in caplog.text


async def test_requests_for_one_task_each_are_looked_at_together(caplog) -> None:
    store, agent = agl.InMemoryLightningStore(), by_environment_in_threads
    async with gateway_of(store) as gateway, running(agent, store, runners=4):
        resources = await store.add_resources({"llm": gateway.as_resource(model="m")})
        collector = Collector(store, gateway, agl.TraceToRows(), agl.RolloutConfig())
        about = 1, "train", resources.resources_id, {}
        await asyncio.gather(*(collector.collect([task], *about) for task in TASKS))
    assert SAID in caplog.text


async def test_baseline_of_mixed_calls_tells_it(caplog: pytest.LogCaptureFixture) -> None:
    store = agl.InMemoryLightningStore()
    async with gateway_of(store) as gateway:
        about = {"initial_resources": {"llm": gateway.as_resource(model="m")}, "concurrency": 4}
        algorithm = agl.Baseline(max_queue_length=4)
        trainer = agl.Trainer(algorithm=algorithm, store=store, strategy="shm", **about)
        await asyncio.to_thread(trainer.fit, by_environment, TASKS)
    assert SAID in caplog.text


async def test_agent_with_a_global_address_is_right_one_at_a_time() -> None:
    collected = await collect(by_environment, TASKS, 1)
    assert [len(one.ran.calls) for one in collected.ended] == [2, 2, 2, 2]
    for one in collected.ended:
        question = one.rollout.input["question"]
        assert all(question in repr(call) for call in one.ran.calls)


async def test_agent_that_makes_no_call_or_many_raises_no_alarm(caplog) -> None:
    collected = await collect(by_itself, TASKS, 2, concurrency=8)
    calls = [len(one.ran.calls) for one in collected.ended]
    assert sorted(calls) == [0, 0, 3, 3, 3, 3, 3, 3]
    assert SAID in caplog.text


@pytest.mark.parametrize(("address", "warnings"), [("of the attempt", 0), ("endpoint", 1)])
async def test_agent_that_calls_for_no_rollout_is_warned_and_no_other(address, warnings, caplog):
    resources._warn_of_bare_address.cache_clear()
    await collect(Reads(address), TASKS, 1)
    assert sum("ProxyLLM.endpoint was read" in message for message in caplog.messages) == warnings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": {"concurency": 2}}, r"runner.concurency: unknown key. Did you mean"),
        ({"concurrency": 2, "runner": {"concurrency": 3}}, "has concurrency=3; leave"),
        ({"max_rollouts": 2, "runner": {"max_rollouts": 3}}, "max_rollouts=2, .* max_rollouts=3"),
        ({"runner": 7}, "expected a Runner"),
    ],
)
def test_runner_is_checked_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agl.Trainer(strategy="shm", **options)
