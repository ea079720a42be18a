"""Runs of an algorithm that does nothing but run its tasks, in a folder of the test's own."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from tests import interpreter

import agl
from agl.errors import StoppedError
from agl_runs.store import get_run, query_runs


@agl.rollout
def agent(task: Any) -> float:
    return float(task)


class Toy(agl.Algorithm):
    """Runs its tasks once; notes which start of which run it was."""

    def __init__(self, fails: bool = False, stops: bool = False, seed: int = 7) -> None:
        self.fails, self.stops, self.seed = fails, stops, seed
        self.seen: list[Any] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        run_id, generation = self.get_run() or ("", 0)
        record = await get_run(store, run_id)
        self.seen.append((run_id, generation, self.get_run_folder(), record))
        requests = [agl.EnqueueRolloutRequest(input=task) for task in train_dataset or ()]
        rollouts = await store.enqueue_many_rollouts(requests)
        await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
        if self.fails:
            raise RuntimeError("it broke")
        if self.stops:
            raise StoppedError("told to stop")


class Writing(Toy):
    """Notes its run in its folder, as algorithms do that keep checkpoints there."""

    name = "toy"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        run_id, generation = self.get_run() or ("", 0)
        text = json.dumps({"run": run_id, "generation": generation})
        folder = self.get_run_folder() or Path()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(text)
        await super().run(train_dataset, val_dataset)


def fit(store: Any = None, algorithm: Any = None, tasks: Any = (1, 2), **options: Any) -> Any:
    algorithm = algorithm or Toy()
    trainer = agl.Trainer(algorithm=algorithm, store=store, strategy="shm", **options)
    trainer.fit(agent, list(tasks))
    return algorithm


def runs_of(store: Any) -> list[agl.Run]:
    return list(asyncio.run(query_runs(store)))


def started(script: str) -> "subprocess.Popen[bytes]":
    """A process that runs a script, which has said a line and waits for another."""
    process = interpreter.started("-c", script)
    assert process.stdout.readline() == b"here\n"
    return process
