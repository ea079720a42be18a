"""An algorithm of one's own, with store, algorithm and runner as three processes.

export AGL_SERVER_TOKEN=a-long-random-text   # in each terminal
agl store                             # terminal 1
python apo_custom_algorithm.py algo     # terminal 2
python apo_custom_algorithm.py runner   # terminal 3
"""

import argparse
import asyncio
import os
import re

from openai import AsyncOpenAI

import agl

PROMPTS = [
    "You are a helpful assistant. {any_question}",
    "You are a knowledgeable expert. Answer in two short sentences. {any_question}",
    "You are a friendly teacher. Explain it to a child. {any_question}",
]
QUESTION = "Why is the sky blue?"
MODEL = os.environ.get("AGENT_MODEL", "gpt-4.1-nano")


@agl.rollout
async def apo_rollout(task: str, prompt_template: agl.PromptTemplate) -> float:
    """Answer a question, and let the model grade the answer from 0 to 1."""
    async with AsyncOpenAI() as client:
        prompt = prompt_template.format(any_question=task)
        answer = await ask(client, prompt)
        grade = await ask(
            client,
            f"Grade how well the answer explains the question, from 0 to 1. Give the number only.\n"
            f"Question: {task}\nAnswer: {answer}",
        )
    number = re.search(r"\d+(\.\d+)?", grade)
    if number is None:
        raise ValueError(f"the grader gave no number: {grade!r}")
    return min(1.0, float(number.group()))


async def ask(client: AsyncOpenAI, prompt: str) -> str:
    """One answer of the model."""
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}]
    )
    return answer.choices[0].message.content or ""


async def apo_algorithm(store: agl.LightningStore) -> str:
    """Try each prompt once, and publish the one with the best reward."""
    rewards: dict[str, float] = {}
    for prompt in PROMPTS:
        resources: agl.NamedResources = {"prompt_template": agl.PromptTemplate(template=prompt)}
        update = await store.add_resources(resources)
        rollout = await store.enqueue_rollout(
            QUESTION, mode="train", resources_id=update.resources_id
        )
        ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        if not ended:
            raise RuntimeError(f"rollout {rollout.rollout_id} was deleted before it had ended")
        reward = agl.find_final_reward(await store.query_spans(rollout.rollout_id, "latest"))
        print(f"{ended[0].status}, reward {reward}: {prompt}", flush=True)
        if reward is not None:
            rewards[prompt] = reward
    if not rewards:
        raise RuntimeError("no rollout got a reward, so no prompt is the best")
    best = max(rewards, key=rewards.__getitem__)
    await store.add_resources({"prompt_template": agl.PromptTemplate(template=best)})
    print(f"best prompt: {best}", flush=True)
    return best


async def run_algorithm(url: str) -> None:
    """The algorithm's process."""
    store = agl.LightningStoreClient(url)
    try:
        await apo_algorithm(store)
    finally:
        await store.close()


async def run_runner(url: str) -> None:
    """A runner's process; it ends after one rollout per prompt."""
    store = agl.LightningStoreClient(url)
    runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=len(PROMPTS))
    try:
        with runner.run_context(agent=apo_rollout, store=store):
            await runner.iter()
    finally:
        await store.close()


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["algo", "runner"])
    parser.add_argument("--url", default="http://127.0.0.1:4747", help="of the store")
    options = parser.parse_args()
    agl.setup_logging()
    asyncio.run((run_algorithm if options.role == "algo" else run_runner)(options.url))


if __name__ == "__main__":
    main()
