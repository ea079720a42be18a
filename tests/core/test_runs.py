"""Runs as the trainer keeps them: begun before anything else, ended after it."""

import asyncio
import functools
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl.store.forwarding import StandInStore
from agl_runs.description import commit_of, options_of
from agl_runs.differences import differences, options_that_shape, shape_changes, what_shapes
from agl_runs.replay import replay
from agl_sqlite import SqliteLightningStore

from .toy_runs import Toy, Writing, agent, fit, runs_of

pytestmark = pytest.mark.usefixtures("here")


def test_run_is_recorded_before_the_algorithm_starts_and_after_it_has_ended(store):
    toy = fit(store)
    ((run_id, generation, folder, during),) = toy.seen
    (run,) = runs_of(store)
    assert (run.run_id, generation, during.status) == (run_id, 1, "running")
    assert (run.status, run.generations[0].outcome) == ("finished", "finished")
    assert (run.algorithm, run.seed) == ("toy", 7)
    assert run.config == {"algorithm": {"type": "toy", "fails": False, "stops": False, "seed": 7}}
    assert folder == Path(run.folder or "") == Path("agl-runs", run_id).absolute()
    assert not folder.exists()  # nobody wrote anything
    assert (run.generations[0].pid, run.datasets["train"].num_tasks) == (os.getpid(), 2)
    assert {"python", "agl-core"} <= run.code.versions.keys()
    assert {"agent", "algorithm"} <= run.code.sources.keys()


def test_what_the_algorithm_says_of_a_rollout_stays(store):
    class Labels(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            await self.get_store().enqueue_rollout(1, metadata={"run": "mine", "step": 3})
            await self.get_store().start_rollout(1, metadata={"step": 4})

    fit(store, Labels(), run="r")
    one, two = asyncio.run(store.query_rollouts())
    assert one.metadata == {"run": "mine", "generation": 1, "step": 3}
    assert two.metadata == {"run": "r", "generation": 1, "step": 4}


class AtOnce(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        raise RuntimeError("it broke")


@pytest.mark.parametrize("algorithm", [Toy(fails=True), AtOnce()], ids=["later", "at once"])
@pytest.mark.parametrize(("strategy", "port"), [("shm", None), ("cs", 0)])
def test_run_that_fails_says_why(strategy, port, algorithm):
    store = SqliteLightningStore("kept.db")
    trainer = agl.Trainer(algorithm=algorithm, store=store, strategy=strategy, port=port)
    with pytest.raises(AlgorithmError, match="it broke") as caught:
        trainer.fit(agent, [1])
    (run,) = runs_of(store)
    assert run.status == "failed"
    assert "it broke" in (run.generations[0].error or "")
    assert f"go on with Trainer(run='{run.run_id}', resume=True)" in caught.value.__notes__[0]
    asyncio.run(store.close())


def test_interrupted_run_can_go_on(store):
    class Interrupted(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            if (self.get_run() or ("", 1))[1] == 1:
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()
            await super().run(train_dataset, val_dataset)

    with pytest.raises(KeyboardInterrupt):
        fit(store, Interrupted())
    (run,) = runs_of(store)
    assert (run.status, run.generations[0].error) == ("stopped", "interrupted")
    again = fit(store, Interrupted(), run=run.run_id, resume=True)
    assert again.seen[0][:2] == (run.run_id, 2)
    (run,) = runs_of(store)
    assert [each.outcome for each in run.generations] == ["stopped", "finished"]


@pytest.mark.parametrize("fails", [False, True], ids=["stops", "fails"])
@pytest.mark.parametrize(
    "options",
    [{"run": "a"}, {"run": "a", "run_dir": "out"}, {"run_dir": "out"}, {}],
    ids=["run", "run and run_dir", "run_dir", "none"],
)
def test_what_a_run_says_of_going_on_can_be_followed(options, fails):
    first = Writing(fails=fails, stops=True)
    with pytest.raises((StoppedError, AlgorithmError)) as caught:
        fit(algorithm=first, **options)
    asyncio.run(first.get_trainer().store.close())
    said = "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    advice = re.search(r"go on with Trainer\((.*?)\) and what else it had", said)
    second = fit(force=True, **eval(f"dict({advice[1]})"))
    assert second.seen[0][:2] == (first.seen[0][0], 2)
    asyncio.run(second.get_trainer().store.close())


class OwnStore(agl.LightningStore):
    """Of a third party, in memory, as it says by saying nothing."""

    def __init__(self) -> None:
        self._inner = agl.InMemoryLightningStore()

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self._inner, operation)(**arguments)


def test_run_that_is_in_memory_only_says_that_it_cannot_go_on():
    with pytest.raises(StoppedError, match=r"it cannot go on after this process.*run=\.\.\."):
        fit(StandInStore(agl.InMemoryLightningStore()), Toy(stops=True))
    with pytest.raises(StoppedError, match="it cannot go on after this process"):
        fit(OwnStore(), Toy(stops=True))
    with pytest.raises(AlgorithmError) as caught:
        fit(algorithm=Toy(fails=True))
    assert not hasattr(caught.value, "__notes__")


def test_baseline_names_a_rollout_that_is_gone_and_runs_the_others(caplog):
    class Deleting(StandInStore):
        async def wait_for_rollouts(self, *, rollout_ids: Any, timeout: float | None = None) -> Any:
            (one,) = await self._store.query_rollouts(rollout_id_in=rollout_ids)
            if one.input == 1:
                await self._store.delete_rollouts(rollout_ids)
                return []
            return await self._store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)

    caplog.set_level("INFO", "agl")
    store = Deleting(agl.InMemoryLightningStore())
    result = agl.Trainer(store=store, strategy="shm", algorithm="baseline").fit(agent, [0, 1, 2])
    assert result.rollouts == {"succeeded": 2}
    assert "was deleted, and counts for nothing" in caplog.text


def test_replay_of_a_run_that_there_is_not_makes_nothing(tmp_path):
    trainer = agl.Trainer(algorithm=Toy(), run="typo", strategy="shm")
    with pytest.raises(ConfigError, match=r"there is no run in .*typo.*See: agl runs"):
        replay(trainer, agent, 1)
    assert list(tmp_path.iterdir()) == []


def test_commit_is_that_of_the_repository_of_the_folder(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        about = ("-c", "user.name=n", "-c", "user.email=e")
        command = ["git", "-C", str(tmp_path), *about, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init", "--quiet")
    assert commit_of(tmp_path) is None
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    (tmp_path / "src").mkdir()
    head = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    assert commit_of(tmp_path / "src") == head
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert commit_of(tmp_path / "src", timeout=0.1) is None


class Base(agl.Algorithm):
    safe_options = frozenset({"progress", "checks.every"})

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Nothing is learned."""


class Steps(Base):
    growing_options = frozenset({"steps", "max_trained_tokens"})

    def __init__(self, steps: int = 3, epochs: int = 1, progress: str = "bar") -> None:
        self.steps, self.epochs, self.progress = steps, epochs, progress


@pytest.mark.parametrize(
    ("name", "then", "now", "is_safe"),
    [
        ("algorithm.steps", 3, 4, True),
        ("algorithm.steps", 3, 2, False),
        ("algorithm.max_trained_tokens", 100, 200, True),
        ("algorithm.max_trained_tokens", 100, None, True),
        ("algorithm.max_trained_tokens", None, 100, False),
        ("algorithm.epochs", 1, 2, False),
        ("algorithm.progress", "bar", "lines", True),
        ("algorithm.checks.every", 1, 2, True),
        ("algorithm.checks", 1, 2, True),
        ("algorithm.checks.copies", 1, 2, False),
        ("algorithm.base_url", "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", True),
        ("gateway.port", 8000, 8001, True),
        ("gateway.run_budget.calls", 7, 100, True),
        ("environment.budget", 5.0, 9.0, True),
        ("gateway.attempt_budget.calls", 7, 100, False),
    ],
)
def test_what_only_ends_a_run_or_finds_servers_may_change(name, then, now, is_safe):
    def config(value: Any) -> Any:
        for part in reversed(name.split(".")):
            value = {part: value}
        return value

    before = agl.Run(run_id="a", algorithm="toy", create_time=0.0, config=config(then))
    start = agl.RunStart(run_id="a", algorithm="toy", config=config(now))
    safe, unsafe = differences(before, start, Steps())
    assert [len(safe), len(unsafe)] == [is_safe, not is_safe]
    shown = what_shapes(start)
    assert (name in shown) == (not is_safe and not name.startswith("algorithm."))
    assert options_that_shape(Steps()) == {"type": "steps", "epochs": 1}


@pytest.mark.parametrize(
    ("model", "is_same"), [("/new/a/m", True), ("/old/a/m", True), ("/new/b/m", False)]
)
def test_a_path_is_the_same_where_it_is_or_as_it_lies_from_the_run(model, is_same):
    then, now = ({"algorithm": {"model": one}} for one in ("/old/a/m", model))
    before = agl.Run(run_id="a", algorithm="toy", create_time=0.0, config=then, folder="/old/run")
    start = agl.RunStart(run_id="a", algorithm="toy", config=now, folder="/new/run")
    found = [f"model: /old/a/m then, {model} now"][is_same:]
    assert differences(before, start, Steps()) == ([], [f"algorithm.{one}" for one in found])
    old, new = (
        {"options": one.config["algorithm"], "folder": one.folder} for one in (before, start)
    )
    assert shape_changes(old, new, Steps()) == found
    # Of before folders were noted, and this was safe to change.
    unknown = {"options": {**old["options"], "progress": "lines"}}
    assert bool(shape_changes(unknown, new, Steps())) == (model != "/old/a/m")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (json.dumps, "json.dumps"),
        (functools.partial(json.dumps, indent=2), "json.dumps"),
        (json.JSONEncoder, "json.encoder.JSONEncoder"),
        (json.JSONEncoder(), "json.encoder.JSONEncoder"),
    ],
)
def test_functions_and_objects_among_options_are_recorded_by_name(given, name):
    class Toy(agl.Algorithm):
        def __init__(self, model: Any) -> None:
            self.model = model

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...

    assert options_of(Toy(given)) == {"type": "toy", "model": name}
