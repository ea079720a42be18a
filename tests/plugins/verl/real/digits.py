"""An agent for the tests, in plain openai: two turns, rewarded for digits.

As a script it is a runner: ``python digits.py PORT`` joins the store at that port, from an
environment that needs neither verl nor torch.
"""

import asyncio
import functools
import os
import random
import sys
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


def main(port: int) -> None:
    """Claim and run rollouts until the trainer goes."""
    loaded = sorted({"torch", "verl", "ray", "agl_verl", "agl_gateway"} & set(sys.modules))
    if loaded:
        raise SystemExit(f"a runner needs none of {loaded}")
    strategy = {"type": "cs", "role": "runner", "server_port": port}
    agl.Trainer(strategy=strategy, n_runners=1).fit(digits)


if __name__ == "__main__":
    main(int(sys.argv[1]))
