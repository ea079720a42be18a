"""A tiny GRPO run in a process of its own, which may kill itself: ``grpo_run.py FOLDER OPTIONS``.

OPTIONS is JSON: options of GRPO, and ``kill_at``: which call of the agent, counted over this
process, is its last; ``wait_at``: which writes FOLDER/waiting, and waits for FOLDER/go;
``elsewhere``: the folder that the agent changes to; ``run_budget``: of the gateway;
``resume``: whether the run in its folder goes on.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import agl
from agl_learning.run.folder import read_generation

if __package__:
    from .table_model import TINY, WORDS, word_of
else:  # as a script
    from table_model import TINY, WORDS, word_of

TASKS = ["one", "two", "three"]


def train(folder: Path, store: agl.LightningStore, options: dict) -> None:
    """A run of at most five steps of two groups of two."""
    kill_at, wait_at, calls = options.pop("kill_at", 0), options.pop("wait_at", 0), 0
    elsewhere, budget = options.pop("elsewhere", None), options.pop("run_budget", None)
    resume = options.pop("resume", False)

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if elsewhere is not None:
            os.chdir(elsewhere)
        if calls == wait_at:
            (folder / "waiting").touch()
            while not (folder / "go").exists():  # noqa: ASYNC110  # another process makes it
                await asyncio.sleep(0.05)
        with (folder / "endpoints.txt").open("a") as file:
            file.write(f"{llm.endpoint}\n")
        return float(WORDS.index(await word_of(llm, task, **llm.sampling_parameters)))

    size = {"steps": 5, "groups_per_step": 2, "group_size": 2, "max_tokens": 1}
    algorithm = agl.GRPO(**{**TINY, **size, "run_dir": str(folder / "run"), **options})
    run = {"run": read_generation(algorithm.run_dir).run, "resume": True} if resume else {}
    gateway = agl.LLMProxy(run_budget=budget)
    trainer = agl.Trainer(
        algorithm=algorithm, store=store, strategy="shm", n_runners=1, llm_proxy=gateway, **run
    )
    trainer.fit(agent, TASKS, val_dataset=["four"])


if __name__ == "__main__":
    home = Path(sys.argv[1])
    store = agl.SqliteLightningStore(home / "store.db", durability="process")
    train(home, store, json.loads(sys.argv[2]))
