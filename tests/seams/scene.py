"""Runs in a process of their own, of which tests kill, freeze and count the parts."""

import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.stores import ask

from agl.store.base import LightningStore

HEAD = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
import agl

HERE = Path(__file__).parent
config = agl.RolloutConfig()

class DiesAtStart(agl.OtelTracer):
    # A tracer that ends the process of each runner with one of these numbers.
    def __init__(self, numbers=(0, 1)):
        super().__init__()
        self.numbers = numbers

    def init_worker(self, worker_id, store=None):
        if worker_id in self.numbers:
            os._exit(0)
        super().init_worker(worker_id, store)

@agl.rollout
def agent(task: int) -> float:
    return 1.0

def trainer(algorithm, store=None, max_rollouts=None, tracer=None, **options):
    options = {"type": "cs", "server_port": 0, "graceful_timeout": 2.0, **options}
    store = store or agl.SqliteLightningStore(HERE / "store.db")
    return agl.Trainer(algorithm=algorithm, strategy=options, store=store, tracer=tracer,
                       max_rollouts=max_rollouts)

def algorithm_of(tasks):
    @agl.algo
    async def algorithm(store):
        rollouts = [await store.enqueue_rollout(task, config=config) for task in tasks]
        await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
        for rollout in rollouts:
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            error = ended.attempt.error
            print("RESULT", ended.input, ended.status, error.boundary if error else None,
                  flush=True)
    return algorithm

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.02)
"""


class Scene:
    """A folder with a script, and all processes that descend from it, wherever they went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex

    @property
    def environment(self) -> dict[str, str]:
        """Of each process of it."""
        return {**os.environ, "AGL_TEST_SCENE": self.mark}

    def write(self, body: str) -> Path:
        """The script."""
        script = self.folder / "script.py"
        script.write_text(HEAD + textwrap.dedent(body))
        return script

    def start(self, body: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, self.write(body)]
        with self.errors.open("w") as errors, self.output.open("w") as output:
            said = {"stdout": output, "stderr": errors, "env": self.environment}
            return subprocess.Popen(command, start_new_session=True, **said)

    def run(self, body: str) -> "tuple[int, list[list[str]], str]":
        """Exit code, results and standard error; nothing of it may be left."""
        process = self.start(body)
        code = process.wait(timeout=250)
        left = self.left()
        assert not left, [(one, one.status(), one.cmdline()) for one in left]
        lines = self.output.read_text().splitlines()
        results = [line.split()[1:] for line in lines if line.startswith("RESULT")]
        return code, results, self.errors.read_text()

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.txt"

    def left(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("AGL_TEST_SCENE") == self.mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def open_attempts(self) -> list[str]:
        """Statuses of the attempts in the script's store that have not ended."""

        async def find(store: LightningStore) -> list[str]:
            attempts = [
                attempt
                for rollout in await store.query_rollouts()
                for attempt in await store.query_attempts(rollout.rollout_id)
            ]
            return [one.status for one in attempts if one.status in ("preparing", "running")]

        return ask(self.folder / "store.db", find)


def wait_until(condition: Callable[[], bool], seconds: float = 250.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
