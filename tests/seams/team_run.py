"""Two models in one run, in a process that may kill itself: ``team_run.py FOLDER OPTIONS``.

OPTIONS is JSON: those of the team, and ``kill_at``: which call of the agent is its last.
"""

import json
import os
import signal
import sys
from pathlib import Path

import agl

if __package__:
    from .table_model import WORDS, build_model, build_tokenizer
else:  # as a script
    from table_model import WORDS, build_model, build_tokenizer


def trainer_of(folder: Path, store: agl.LightningStore, **options) -> agl.Trainer:
    """A trainer of two models, one of which is compared with its start."""
    common = {"model": build_model, "tokenizer": build_tokenizer, "max_tokens": 1}
    common |= {"device": "cpu", "torch_threads": 1, "learning_rate": 1e-3}
    penalised = {"type": "grpo", "kl": 0.01, **common}
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


def agent_of(kill_at: int = 0, asks_both: bool = True):
    """An agent that asks models for a word; later words of the table are better."""
    calls = 0

    @agl.rollout
    async def both(task: str, one: agl.LLM, other: agl.LLM) -> float:
        import aiohttp

        async def ask(llm: agl.LLM) -> float:
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            body = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
            async with (
                aiohttp.ClientSession(raise_for_status=True) as session,
                session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
            ):
                answer = await response.json()
            return float(WORDS.index(answer["choices"][0]["message"]["content"].split()[0]))

        return await ask(one) + (await ask(other) if asks_both else 0.0)

    return both


if __name__ == "__main__":
    home, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    agent = agent_of(given.pop("kill_at", 0))
    kept = agl.SqliteLightningStore(home / "store.db", durability="process")
    trainer_of(home / "run", kept, **given).fit(agent, ["red", "green"])
