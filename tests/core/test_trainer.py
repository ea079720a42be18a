"""The trainer with everything in one process."""

import asyncio
import contextlib
import re
import threading
import time
from typing import Any

import pytest

import agl
from agl.errors import (
    AlgorithmError,
    ConfigError,
    DatasetError,
    RunnerCrashError,
    UnknownComponentError,
)


@agl.rollout
def tenth(task: int) -> float:
    return task / 10


def shm(**options: Any) -> dict[str, Any]:
    return {"type": "shm", "graceful_delay": 1.0, **options}


def test_synchronous_algorithm_runs_beside_the_loop():
    threads: list[str] = []

    @agl.algo
    def algorithm(store: agl.LightningStore) -> None:
        threads.append(threading.current_thread().name)
        asyncio.run(store.enqueue_rollout(1))

    agl.Trainer(algorithm=algorithm, strategy=shm(main_thread="algorithm")).fit(tenth)
    assert threads == ["agl-call"]


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_crashed_algorithm_raises_and_stops_the_runners(main_thread):
    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        raise ZeroDivisionError("broken")

    before = threading.active_count()
    with pytest.raises(AlgorithmError, match="ZeroDivisionError: broken") as caught:
        agl.Trainer(algorithm=algorithm, strategy=shm(main_thread=main_thread)).fit(tenth)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    deadline = time.monotonic() + 3
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that has done its work takes a moment to end
    assert threading.active_count() <= before


@pytest.mark.parametrize("broken", ["init_worker", "teardown_worker"])
def test_runner_that_fails_at_its_start_or_end_is_torn_down(broken):
    called: list[str] = []

    class Broken(agl.LitAgentRunner[Any]):
        def init_worker(self, worker_id: int, store: Any, **kwargs: Any) -> None:
            self.note("init_worker")
            super().init_worker(worker_id, store)

        def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
            super().teardown_worker(worker_id)
            self.note("teardown_worker")

        def teardown(self, *args: Any, **kwargs: Any) -> None:
            super().teardown()
            self.note("teardown")

        def note(self, name: str) -> None:
            called.append(name)
            if name == broken:
                raise OSError("no such device")

    trainer = agl.Trainer(runner=Broken(agl.OtelTracer()), strategy=shm())
    with contextlib.suppress(RunnerCrashError):
        trainer.dev(tenth, [1])
    assert broken in called
    assert called[-1] == "teardown"


def test_baseline_keeps_rewards_and_counts_failures():
    @agl.rollout
    def agent(task: int) -> float:
        if task == 2:
            raise RuntimeError("no")
        return float(task)

    class OfAnother(agl.InMemoryLightningStore):  # as 0.3's, with rewards in spans only
        async def get_rollout_by_id(self, rollout_id: str) -> Any:
            found = await super().get_rollout_by_id(rollout_id)
            return found and found.changed(reward=None)

    baseline, store = agl.Baseline(max_queue_length=2), OfAnother()
    agl.Trainer(algorithm=baseline, store=store, strategy=shm()).fit(agent, [1, 2], val_dataset=[3])
    assert sorted(baseline.rewards.values(), key=str) == [1.0, 3.0, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_epochs": 1.5}, "n_epochs must be a whole number; got 1.5"),
        ({"max_queue_length": 0}, "max_queue_length must be at least 1; got 0"),
    ],
)
def test_baseline_refuses_senseless_options(options, message):
    with pytest.raises(ConfigError, match=f"Baseline: {message}"):
        agl.Baseline(**options)


def test_strategy_forms_of_the_guides():
    assert agl.Trainer(n_runners=1, strategy="shm").n_runners == 1
    options = {"type": "shm", "n_runners": 8, "main_thread": "algorithm"}
    assert agl.Trainer(strategy=options).n_runners == 8
    strategy = agl.SharedMemoryExecutionStrategy(main_thread="algorithm", n_runners=4)
    assert agl.Trainer(strategy=strategy).strategy is strategy
    for given, port in (({"strategy": {"type": "cs", "server_port": 9999}}, 9999), ({}, 0)):
        served = agl.Trainer(n_runners=8, **given).strategy
        assert isinstance(served, agl.ClientServerExecutionStrategy)
        assert (served.n_runners, served.server_port) == (8, port)


def test_environment_reaches_the_strategy(monkeypatch):
    monkeypatch.setenv("AGL_SERVER_PORT", "10000")
    monkeypatch.setenv("AGL_CURRENT_ROLE", "algorithm")
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    strategy = agl.Trainer(strategy="cs").strategy
    found = strategy.server_port, strategy.role, strategy.managed_store
    assert found == (10000, "algorithm", False)


def test_names_of_0_3_are_taken_beside_ours():
    trainer = agl.Trainer(n_workers=1, strategy=shm())
    assert trainer.dev(tenth, dev_dataset=[1]).mean_reward == 0.1
    assert trainer.n_runners == 1
    with pytest.raises(ConfigError, match="n_runners and n_workers are one setting"):
        agl.Trainer(n_runners=1, n_workers=2)


def test_algorithms_run_under_a_strategy_of_ones_own():
    class OneAfterTheOther(agl.ExecutionStrategy):
        def execute(self, algorithm: Any, runner: Any, store: agl.LightningStore) -> None:
            async def both() -> None:
                stop = agl.ThreadingEvent()
                runners = asyncio.create_task(runner(store, 0, stop))
                await algorithm(store, stop)
                stop.set()
                await runners

            asyncio.run(both())

    baseline = agl.Baseline()
    agl.Trainer(algorithm=baseline, strategy=OneAfterTheOther(), max_rollouts=10).fit(tenth, [1, 2])
    assert list(baseline.rewards.values()) == [0.1, 0.2]


def test_algorithm_reads_what_was_recorded_with_the_adapter_of_the_trainer():
    class Reads(agl.Algorithm):
        def __init__(self) -> None:  # as the guide's, it does not call the base's
            self.read: list[Any] = []

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store = self.get_store()
            assert self.get_llm_proxy() is None
            for task in train_dataset:
                rollout = await store.enqueue_rollout(task)
                ids = [rollout.rollout_id]
                while not await store.wait_for_rollouts(rollout_ids=ids, timeout=0.0):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                spans = await store.query_spans(rollout.rollout_id, "latest")
                self.read.append(self.get_adapter().adapt(spans))

    class Rewards(agl.TraceAdapter[Any]):
        def adapt(self, source: Any, /) -> Any:
            return agl.find_final_reward(source)

    algorithm = Reads()
    agl.Trainer(algorithm=algorithm, adapter=Rewards(), strategy=shm()).fit(tenth, [1, 2])
    assert algorithm.read == [0.1, 0.2]


def test_wrong_requests_are_refused_before_anything_starts():
    with pytest.raises(UnknownComponentError, match=r"unknown strategy 'smh'.*Did you mean 'shm'"):
        agl.Trainer(strategy="smh")
    with pytest.raises(ConfigError, match=r"Decorate your function with @agl\.rollout"):
        agl.Trainer(strategy="shm").dev(lambda task: 1.0)
    with pytest.raises(ConfigError, match="main_process='runner': n_runners must be at most 1"):
        agl.Trainer(n_runners=2, strategy={"type": "cs", "main_process": "runner"})


@pytest.mark.parametrize("name", ["n_runners", "max_rollouts", "concurrency"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        *(("8", "whole number; got '8'"), (2.5, "whole number; got 2.5"), (True, "got True")),
        (0, "at least 1; got 0"),
    ],
)
def test_what_is_no_count_is_refused(name, value, said):
    with pytest.raises(ConfigError, match=f"Trainer: {name} must be .*{said}"):
        agl.Trainer(strategy="shm", **{name: value})


def test_dev_refuses_a_slow_algorithm():
    @agl.algo
    def algorithm(store: agl.LightningStore) -> None: ...

    with pytest.raises(ConfigError, match=r"Trainer\.dev runs fast algorithms only"):
        agl.Trainer(algorithm=algorithm, strategy="shm").dev(tenth, [1])


def test_adapter_that_selects_others_than_the_agent_says_is_refused():
    class Selecting(agl.TraceAdapter[list[str]]):
        def __init__(self, agent_match: str | None = None) -> None:
            self.agent_match = agent_match

        def adapt(self, source: list[agl.Span], /) -> list[str]:
            return []

    class Two(agl.LitAgent[int]):
        def rollout(self, task: int, resources: Any, rollout: Any) -> float:
            return 1.0

    def fit(adapter: Selecting) -> None:
        agl.Trainer(strategy=shm(), adapter=adapter).dev(Two(trained_agents="write"), [1])

    with pytest.raises(ConfigError, match=r"trained_agents='write'.*Selecting.*agent_match=None"):
        fit(Selecting())
    fit(Selecting("write"))


@agl.algo
def takes_no_dataset(store: agl.LightningStore) -> None:
    raise AssertionError("it was started")


@agl.algo
def takes_train_tasks(train_dataset: Any) -> None:
    raise AssertionError("it was started")


@pytest.mark.parametrize(
    ("algorithm", "datasets", "name"),
    [
        (takes_no_dataset, {"train_dataset": [1]}, "train_dataset"),
        (takes_no_dataset, {"val_dataset": [1]}, "val_dataset"),
        (takes_train_tasks, {"train_dataset": [1], "val_dataset": [2]}, "val_dataset"),
    ],
)
def test_dataset_that_the_algorithm_does_not_take_is_refused(algorithm, datasets, name):
    with pytest.raises(TypeError, match=rf"{name} is given, and the function does not") as caught:
        agl.Trainer(algorithm=algorithm, strategy=shm()).fit(tenth, **datasets)
    assert isinstance(caught.value, ConfigError)
    with pytest.raises(TypeError, match=name):
        algorithm.run(datasets.get("train_dataset"), datasets.get("val_dataset"))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("http://localhost:8000", "'http://localhost:8000'. The tasks of a file"),
        (b"tasks", "b'tasks'"),
        ({"train": [1], "test": [2]}, r"got \{'train': \[1\], 'test': \[2\]\}. Give one"),
        ({1, 2}, r"len\(\) and \[index\]; got \{1, 2\}. Of a generator or a set, give list"),
        ([], r"got \[\]. It has no tasks. Where the algorithm needs none, leave it out"),
        (5, "got 5"),
        ((task for task in [1, 2]), "got <generator"),
        (list, "got <class 'list'>"),
        (type("L", (list,), {"__len__": lambda _: -1})(), r"Its len\(\) raises ValueError"),
    ],
)
def test_what_is_no_dataset_is_refused_by_name(dataset, said):
    trainer = agl.Trainer(strategy=shm())
    with pytest.raises(DatasetError, match=f"Trainer: train_dataset.*{said}"):
        trainer.fit(tenth, dataset)
    with pytest.raises(DatasetError, match=f"Trainer: val_dataset.*{said}"):
        trainer.dev(tenth, [1], val_dataset=dataset)


def test_setters_that_an_algorithm_overrides_are_called():
    class Keeps(agl.FastAlgorithm):
        def set_trainer(self, trainer: Any) -> None:
            self.kept_trainer = trainer

        def set_llm_proxy(self, llm_proxy: Any) -> None:
            self.kept_proxy = llm_proxy

        def set_initial_resources(self, resources: Any) -> None:
            self.kept_resources = resources

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...

    algorithm, resources = Keeps(), {"p": agl.PromptTemplate(template="x")}
    trainer = agl.Trainer(algorithm=algorithm, strategy="shm", initial_resources=resources)
    trainer.fit(tenth)
    kept = algorithm.kept_trainer, algorithm.kept_resources, algorithm.kept_proxy
    assert kept == (trainer, resources, None)


def test_methods_of_a_users_algorithm_do_not_meet_those_of_ours():
    class Own(agl.FastAlgorithm):
        _context = "mine"
        seen: list[Any] = []  # noqa: RUF012

        def tell(self, what: str) -> None:
            self.seen.append(what)

        def publish_resources(self, resources: Any) -> None:
            raise AssertionError

        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            self.tell(self._context)

    resources = {"p": agl.PromptTemplate(template="x")}
    trainer = agl.Trainer(algorithm=Own(), strategy="shm", initial_resources=resources)
    trainer.fit(tenth)
    assert Own.seen == ["mine"]


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"prompt": "Hello {name}"}, r"'prompt' must be a resource, agl.PromptTemplate.*'Hello"),
        ("Hello", "expected a dict of name -> resource; got 'Hello'"),
    ],
)
def test_what_is_no_resource_is_refused_by_name(resources, said):
    with pytest.raises(ConfigError, match=f"Trainer: initial_resources: {said}"):
        agl.Trainer(initial_resources=resources)


@pytest.mark.parametrize(
    ("given", "right"),
    [("runs/x", "SqliteLightningStore('runs/x')"), ("x.db", "SqliteLightningStore('x.db')")],
)
def test_place_in_the_place_of_a_store_names_the_store_for_it(given, right):
    with pytest.raises(ConfigError, match=re.escape(f"store: {given!r} is no name of")) as said:
        agl.Trainer(store=given)
    assert right in str(said.value)
