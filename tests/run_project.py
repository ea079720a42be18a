"""A project whose configuration ``agl run`` trains: agent, algorithm, tasks and file."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

AGENT = """
import agl

@agl.rollout
def agent(task: dict) -> float:
    return float(task["x"])
"""
LEARN = """
import json, os
import agl

class Learn(agl.Algorithm):
    '''Runs its tasks in each step, and stops after so many of them.'''
    growing_options = frozenset({"steps"})

    def __init__(self, steps: int = 2, stop_after: int | None = None, rate: float = 0.1,
                 api_key: str | None = None):
        self.steps, self.stop_after, self.rate, self.api_key = steps, stop_after, rate, api_key

    async def run(self, train_dataset=None, val_dataset=None):
        store, folder = self.get_store(), self.get_run_folder()
        done = folder / "metrics.jsonl"
        first = len(done.read_text().splitlines()) + 1 if done.exists() else 1
        run_id, generation = self.get_run()
        (folder / "run.json").write_text(json.dumps({"run": run_id, "generation": generation}))
        for step in range(first, self.steps + 1):
            tasks = [agl.EnqueueRolloutRequest(input=x, mode="train") for x in train_dataset]
            rollouts = await store.enqueue_many_rollouts(tasks)
            await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
            with done.open("a") as file:
                print(json.dumps({"step": step, "reward/mean": step / 4}), file=file)
            if step == self.stop_after:
                raise agl.errors.StoppedError("told to stop")
"""
CONFIG = """
agent: runs_agent:agent
train: tasks.jsonl
algorithm: {type: "runs_learn:Learn"}
strategy: shm
"""


Agl = Callable[..., Any]


def write_project(folder: Path, *tasks: object) -> None:
    (folder / "runs_agent.py").write_text(AGENT)
    (folder / "runs_learn.py").write_text(LEARN)
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps({'x': x})}\n" for x in tasks))
    (folder / "agl.yaml").write_text(CONFIG)


@pytest.fixture
def own_modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's own folder; what is imported from it is no module for the next test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield here
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(here)):
            del sys.modules[name]


@pytest.fixture
def project(own_modules: Path) -> Path:
    write_project(own_modules, 1, 0.5)
    return own_modules


def succeeds(agl: Agl, *arguments: str) -> Any:
    """The result of a command that ends well."""
    result = agl(*arguments)
    assert result.code == 0, result.err
    return result


def refuses(agl: Agl, words: str, *arguments: str) -> None:
    """A command that is refused so."""
    result = agl(*arguments)
    assert (result.code, words in result.err) == (2, True), result.err


def begin(agl: Agl, *overrides: str) -> str:
    """Run what the file says; the id of the run."""
    result = agl("run", "agl.yaml", *overrides)
    assert (result.code == 1) == any("stop_after=1" in each for each in overrides), result.err
    found = re.search(r"^run: (\S+)$", result.err, re.MULTILINE)
    return found[1]


def stored(run: str) -> dict[str, Any]:
    """The record of a run that is named by a part of its id, or by its folder."""
    from agl_runs.folders import shown_status
    from agl_runs.local_runs import one_of, runs_here

    found = runs_here(Path(run))[0] if os.path.isdir(run) else one_of(runs_here(), run)
    return {**found.model_dump(), "status": shown_status(found)}
