"""Fifty rollouts of a framework at once in one process: no span on another's rollout."""

import asyncio
import re
from typing import Any

import pytest
from frameworks import FRAMEWORKS
from frameworks.openai_sdk import openai_chat
from scene import ANSWER, reply

import agl
from agl_testing.echo_llm import EchoLLM

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)

NUM_ROLLOUTS = 50
MARK = re.compile(r"Paris-(\d\d)\b")


async def openai_in_a_thread(url: str, question: str) -> str:
    return await asyncio.to_thread(lambda: asyncio.run(openai_chat(url, question)))


AGENTS: list[Any] = [openai_chat, openai_in_a_thread]

if FRAMEWORKS["LangChain agent"].missing() is None:
    from frameworks.langchain_agents import langchain_agent, langchain_plain

    async def langchain_in_a_thread(url: str, question: str) -> str:
        return await asyncio.to_thread(langchain_plain, url, question)

    AGENTS += [langchain_agent, langchain_in_a_thread]


@pytest.mark.parametrize("agent", AGENTS)
async def test_fifty_rollouts_at_once_mix_no_spans(agent, tracer, tracer_name, memory_store):
    rollouts = [await memory_store.start_rollout(input="task") for _ in range(NUM_ROLLOUTS)]

    async def run(index: int, url: str) -> None:
        rollout = rollouts[index]
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        async with tracer.trace_context(store=memory_store, **ids):
            question = f"What is the weather in Paris-{index:02}?"
            assert ANSWER in await agent(url, question)
            agl.emit_reward(index)

    with EchoLLM(reply) as llm:
        await asyncio.gather(*(run(index, llm.url) for index in range(NUM_ROLLOUTS)))
    numbers = set()
    for index, rollout in enumerate(rollouts):
        spans = list(await memory_store.query_spans(rollout.rollout_id))
        marks = {mark for span in spans for mark in MARK.findall(str(span.attributes))}
        assert marks == (set() if tracer_name == "otel" else {f"{index:02}"})
        assert agl.find_final_reward(spans) == index
        numbers.add(len(spans))
    assert len(numbers) == 1, f"some rollouts have more spans than others: {numbers}"
