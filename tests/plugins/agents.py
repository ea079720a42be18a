"""Agents that ask the model one question."""

from typing import Any

import aiohttp

import agl

CAPITALS = {
    "capital of France?": "Paris",
    "capital of Italy?": "Rome",
    "capital of Norway?": "Oslo",
}


async def complete(llm: agl.LLM, *messages: dict[str, str], **options: Any) -> str:
    """The model's answer to a conversation."""
    body = {"model": llm.model, "messages": messages, **llm.sampling_parameters, **options}
    headers = {"Authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    async with (
        aiohttp.ClientSession(raise_for_status=True, headers=headers) as session,
        session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
    ):
        answer = await response.json()
    return answer["choices"][0]["message"]["content"]


async def ask(llm: agl.LLM, content: str) -> str:
    """The model's answer in one word."""
    system = {"role": "system", "content": "Answer with one word."}
    return await complete(llm, system, {"role": "user", "content": content})


@agl.rollout
async def capitals(task: str, llm: agl.LLM) -> float:
    """Reward 1 for the right city."""
    return float(await ask(llm, task) == CAPITALS[task])


@agl.rollout
async def says_red(task: str, llm: agl.LLM) -> float:
    """Reward for one word, whatever the task says."""
    return float((await ask(llm, task)).split()[:1] == ["red"])
