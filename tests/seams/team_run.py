"""Two models in one run: a trainer of them, and their agent."""

from pathlib import Path

import agl

from .table_model import WORDS, build_model, build_tokenizer


def trainer_of(folder: Path, store: agl.LightningStore, **options) -> agl.Trainer:
    """A trainer of two models, one of which is compared with its start."""
    common = {"model": build_model, "tokenizer": build_tokenizer, "max_tokens": 1}
    common |= {"device": "cpu", "torch_threads": 1, "learning_rate": 1e-3}
    penalised = {"type": "grpo", "kl_coefficient": 0.01, **common}
    team = {
        "type": "team",
        "models": {"one": penalised, "other": {"type": "reinforce++", **common}},
        "groups_per_step": 2,
        "group_size": 4,
        "show_progress": False,
        **options,
    }
    return agl.Trainer(
        algorithm=team, store=store, run_dir=folder, strategy="shm", n_runners=1, concurrency=8
    )


def agent_of():
    """An agent that asks both models for a word; later words of the table are better."""

    @agl.rollout
    async def both(task: str, one: agl.LLM, other: agl.LLM) -> float:
        import aiohttp

        async def ask(llm: agl.LLM) -> float:
            body = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
            async with (
                aiohttp.ClientSession(raise_for_status=True) as session,
                session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
            ):
                answer = await response.json()
            return float(WORDS.index(answer["choices"][0]["message"]["content"].split()[0]))

        return await ask(one) + await ask(other)

    return both
