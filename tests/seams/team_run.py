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
    from .table_model import TINY, WORDS, word_of
else:  # as a script
    from table_model import TINY, WORDS, word_of


def trainer_of(folder: Path, store: agl.LightningStore, **options) -> agl.Trainer:
    """A trainer of two models, one of which is compared with its start."""
    common = {**TINY, "max_tokens": 1}
    shown = {"show_progress": common.pop("show_progress")}
    penalised = {"type": "grpo", "kl": 0.01, **common}
    models = {"one": penalised, "other": {"type": "reinforce++", **common}}
    size = {"groups_per_step": 2, "group_size": 4}
    team = {"type": "team", "models": models, **size, **shown, **options}
    return agl.Trainer(
        algorithm=team, store=store, run_dir=folder, strategy="shm", n_runners=1, concurrency=8
    )


def agent_of(kill_at: int = 0, asks_both: bool = True):
    """An agent that asks models for a word; later words of the table are better."""
    calls = 0

    @agl.rollout
    async def both(task: str, one: agl.LLM, other: agl.LLM) -> float:
        async def ask(llm: agl.LLM) -> float:
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return float(WORDS.index(await word_of(llm, task)))

        return await ask(one) + (await ask(other) if asks_both else 0.0)

    return both


if __name__ == "__main__":
    home, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    agent = agent_of(given.pop("kill_at", 0))
    kept = agl.SqliteLightningStore(home / "store.db", durability="process")
    trainer_of(home / "run", kept, **given).fit(agent, ["red", "green"])
