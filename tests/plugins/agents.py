"""Agents that ask the model one question."""

import aiohttp

import agl

CAPITALS = {
    "capital of France?": "Paris",
    "capital of Italy?": "Rome",
    "capital of Norway?": "Oslo",
}


async def ask(llm: agl.LLM, content: str) -> str:
    """The model's answer."""
    body = {
        "model": llm.model,
        "messages": [
            {"role": "system", "content": "Answer with one word."},
            {"role": "user", "content": content},
        ],
        **llm.sampling_parameters,
    }
    headers = {"Authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    async with (
        aiohttp.ClientSession(raise_for_status=True, headers=headers) as session,
        session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
    ):
        answer = await response.json()
    return answer["choices"][0]["message"]["content"]


@agl.rollout
async def capitals(task: str, llm: agl.LLM) -> float:
    """Reward 1 for the right city."""
    return float(await ask(llm, task) == CAPITALS[task])


@agl.rollout
async def says_red(task: str, llm: agl.LLM) -> float:
    """Reward for one word, whatever the task says."""
    return float((await ask(llm, task)).split()[:1] == ["red"])
