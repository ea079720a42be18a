"""An agent for the tests, in plain openai: two turns, rewarded for digits."""

import asyncio
import functools
import os
import random
from typing import Any

import agl


@functools.cache
def client(process_id: int) -> Any:
    """One per process: it keeps its connections."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="unused", base_url="http://set.per.rollout", max_retries=0)


@agl.rollout
async def digits(task: dict[str, Any], llm: agl.LLM) -> float:
    """Ask twice; the reward is the share of digits in both answers.

    A task may have ``crash``, the share of rollouts that fail, and ``seconds``, how long they take.
    """
    seconds = task.get("seconds", 0.0)
    await asyncio.sleep(random.uniform(seconds, 2 * seconds))
    openai = client(os.getpid()).with_options(base_url=llm.endpoint)
    messages = [{"role": "user", "content": f"Say {task['number']}"}]
    texts: list[str] = []
    for again in (True, False):
        answer = await openai.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters
        )
        texts.append(answer.choices[0].message.content or "")
        messages.append({"role": "assistant", "content": texts[-1]})
        if again:
            messages.append({"role": "user", "content": "Again"})
    if random.random() < task.get("crash", 0.0):
        raise RuntimeError("the agent crashed, as the task asked for")
    text = "".join(texts)
    return sum(c.isdigit() for c in text) / max(1, len(text))
