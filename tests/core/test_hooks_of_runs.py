"""The hooks of runs, as trainer, runner, store server and command line call them."""

import asyncio
import contextlib
import csv
import os
import re
import subprocess
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.interpreter import started
from tests.run_agents import succeeds

import agl
from agl.algorithm.base import RunContext
from agl.errors import AlgorithmError, ConfigError
from agl.plugins.hooks import HookCaller, HookManager, routes_of


class Watcher:
    """Keeps what the hooks of runs say, without the components."""

    def __init__(self):
        self.calls = []

    def note(self, name, *said):
        self.calls.append((name, [type(said[0]), *said[1:]]))

    def on_run_start(self, agent, algorithm, store):
        self.note("run start", agent, type(algorithm), store)

    async def on_run_end(self, algorithm, error):
        self.note("run end", algorithm, repr(error))

    def on_attempt_end(self, runner, rollout, attempt, error):
        assert attempt.rollout_id == rollout.rollout_id
        self.note("attempt end", runner, attempt.status, repr(error))

    def on_step_end(self, algorithm, step, metrics):
        self.note("step end", algorithm, step, metrics)

    def on_update_start(self, algorithm, step, rows):
        self.note("update start", algorithm, step, rows)

    def on_evaluation_end(self, algorithm, step, metrics):
        self.note("evaluation end", algorithm, step, metrics)

    def on_resources_published(self, algorithm, resources):
        self.note("resources published", algorithm, resources)

    def on_checkpoint_saved(self, algorithm, step, path):
        self.note("checkpoint saved", algorithm, step, path)


class OneStep(agl.Algorithm):
    """Publishes, runs each task and says what algorithms that train say."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await self.publish_resources({"prompt": PROMPT}, "mine")
        for task in train_dataset or ():
            rollout = await store.enqueue_rollout(task)
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await self.tell("on_update_start", step=1, rows=["a row"])
        await self.tell("on_step_end", step=1, metrics={"reward/mean": 0.5})
        await self.tell("on_evaluation_end", step=1, metrics={"val/reward/mean": 1.0})
        await self.tell("on_checkpoint_saved", step=1, path=Path("one"))
        if val_dataset:
            raise ValueError("it was enough")


PROMPT = agl.PromptTemplate(template="{x}")
SHM = {"type": "shm", "main_thread": "algorithm", "graceful_delay": 1.0}


@agl.rollout
def halves(task: int) -> float:
    if task == 2:
        raise LookupError("no two")
    return task / 2


def watched(train: Any = None, val: Any = None, **options: Any) -> tuple[Watcher, agl.Trainer]:
    """What a watcher saw of a run."""
    watcher = Watcher()
    trainer = agl.Trainer(algorithm=OneStep(), strategy=SHM, hooks=watcher, **options)
    with contextlib.suppress(AlgorithmError):
        trainer.fit(halves, train, val_dataset=val)
    return watcher, trainer


def seen(watcher, what):
    return [said for name, said in watcher.calls if name == what]


@pytest.fixture(scope="module")
def one_run():
    """What a watcher saw of a run of two tasks."""
    return watched([1, 2])[0]


def test_on_run_start_comes_first_and_has_agent_algorithm_and_store(one_run):
    assert one_run.calls[0][0] == "run start"
    [[agent, algorithm, store]] = seen(one_run, "run start")
    assert (agent, algorithm) == (type(halves), OneStep)
    assert len(asyncio.run(store.query_rollouts())) == 2


@pytest.mark.parametrize(("val", "error"), [(None, None), ([1], ValueError("it was enough"))])
def test_on_run_end_comes_last_and_has_the_error_of_the_algorithm(val, error):
    assert watched(val=val)[0].calls[-1] == ("run end", [OneStep, repr(error)])


def test_on_attempt_end_has_the_stored_attempt_and_the_error_of_the_agent(one_run):
    assert seen(one_run, "attempt end") == [
        [agl.LitAgentRunner, "succeeded", "None"],
        [agl.LitAgentRunner, "failed", repr(LookupError("no two"))],
    ]


def test_on_update_start_has_step_and_rows(one_run):
    assert seen(one_run, "update start") == [[OneStep, 1, ["a row"]]]


def test_on_step_end_has_the_metrics_that_the_algorithm_tells(one_run):
    assert seen(one_run, "step end") == [[OneStep, 1, {"reward/mean": 0.5}]]


def test_on_evaluation_end_has_the_metrics_that_the_algorithm_tells(one_run):
    assert seen(one_run, "evaluation end") == [[OneStep, 1, {"val/reward/mean": 1.0}]]


def test_on_checkpoint_saved_has_step_and_path(one_run):
    assert seen(one_run, "checkpoint saved") == [[OneStep, 1, Path("one")]]


def test_on_resources_published_sees_the_trainers_and_the_algorithms():
    watcher, trainer = watched(initial_resources={"first": PROMPT})
    [[_, first], [_, second]] = seen(watcher, "resources published")
    assert (first.resources, second.resources) == ({"first": PROMPT}, {"prompt": PROMPT})
    assert second.resources_id == "mine"
    assert asyncio.run(trainer.store.get_resources_by_id("mine")) == second


def test_example_csv_tracker_writes_steps_and_evaluations_of_runs_that_do_not_name_it(
    install, tmp_path, monkeypatch
):
    folder = Path(__file__).parents[2] / "examples" / "csv-tracker"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (folder / "agl_csv_tracker.py").read_text(encoding="utf-8")
    install(project["name"], {"agl_csv_tracker.py": source}, project["entry-points"])
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        agl.Trainer(algorithm=OneStep(), strategy=SHM).fit(halves)
    with open("agl-metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = [(row["step"], row["metric"], row["value"]) for row in rows]
    assert metrics == [("1", "reward/mean", "0.5"), ("1", "val/reward/mean", "1.0")] * 2
    first, _, second, _ = [row["run"] for row in rows]
    assert "" < first < second


async def test_an_algorithm_without_a_trainer_publishes_and_tells_nobody():
    algorithm = OneStep()
    algorithm.set_store(agl.InMemoryLightningStore())
    await algorithm.run()
    assert (await algorithm.get_store().get_latest_resources()).resources_id == "mine"


ROUTES = """
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def store_routes(store):
        async def count(request):
            return PlainTextResponse(str(len(await store.query_rollouts())))

        async def never(request):
            raise AssertionError("the store's own paths come first")

        return [Route("/count", count), Route("/v1/agl/health", never)]
"""


def test_store_routes_are_answered_by_agl_store_behind_its_token(install, tmp_path):
    folder = install("agl-a", {"agl_a_mod.py": ROUTES}, {"agl.plugins": {"a": "agl_a_mod"}})
    code = "from agl.cli import main; main(['store', '--port', '0', '--backend', 'memory'])"
    environment = {**os.environ, "AGL_SERVER_TOKEN": "secret-long-enough"}
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with started("-c", code, **options) as server:
        try:
            line = next(line for line in server.stderr if line.startswith("agl store: http"))
            url = line.split()[2]
            assert answer(f"{url}/count", "secret-long-enough") == (200, "0")
            assert answer(f"{url}/count", "wrong")[0] == 401
            assert answer(f"{url}/v1/agl/health", "secret-long-enough")[0] == 200
        finally:
            server.terminate()


def answer(url: str, token: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_store_routes_are_answered_by_the_strategy_cs():
    class Counts:
        def store_routes(self, store: Any) -> list[Route]:
            async def count(request: Any) -> PlainTextResponse:
                return PlainTextResponse(str(len(await store.query_rollouts())))

            return [Route("/count", count)]

    counted: list[str] = []

    @agl.algo
    async def algorithm(store: Any) -> None:
        await store.enqueue_rollout(1)
        async with aiohttp.ClientSession() as http, http.get(f"{store.endpoint}/count") as page:
            text = await page.text()
        counted.append(text)

    strategy = {"type": "cs", "server_port": 0}
    agl.Trainer(algorithm=algorithm, strategy=strategy, hooks=Counts()).fit(halves)
    assert counted == ["1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "'int' object is not iterable"),
        ([Route("/a", answer), answer], "<function answer at .*> is no route of starlette"),
    ],
)
async def test_store_routes_that_are_none_are_the_plugins_failure_and_left_out_whole(
    given, message, caplog, monkeypatch
):
    monkeypatch.delenv("AGL_STRICT_PLUGINS", raising=False)
    good = Route("/good", answer)
    wrong, right = SimpleNamespace(store_routes=lambda: given), agl.Hook()
    right.store_routes = lambda: [good]
    caller = HookCaller([wrong, right], manager=HookManager())
    assert await routes_of(caller, agl.InMemoryLightningStore()) == [good]
    assert sum(caller.failures.values()) == 1
    assert re.search(f"SimpleNamespace': store_routes raised TypeError: {message}", caplog.text)


def test_store_routes_are_not_asked_for_where_no_store_is_served():
    asked, routes = [], agl.Hook()
    routes.store_routes = lambda store: asked.append(store)
    agl.Trainer(algorithm="baseline", strategy=SHM, hooks=routes).fit(halves, [1])
    assert asked == []


@pytest.mark.parametrize(
    ("options", "store", "serves"),
    [
        ({}, agl.InMemoryLightningStore(), True),
        ({"role": "algorithm"}, agl.InMemoryLightningStore(), True),
        ({"role": "runner"}, agl.InMemoryLightningStore(), False),
        ({"managed_store": False}, agl.InMemoryLightningStore(), False),
        ({}, agl.LightningStoreClient("http://127.0.0.1:1"), False),
        ({"managed_store": True}, agl.LightningStoreClient("http://127.0.0.1:1"), True),
    ],
)
def test_strategy_cs_serves_a_store_of_its_own_only(options, store, serves):
    assert agl.ClientServerExecutionStrategy(**options).serves(store) is serves


@pytest.mark.parametrize(
    ("hook", "arguments", "message"),
    [
        ("on_step_end", {"step": 1}, "takes algorithm, step, metrics; got algorithm, step"),
        ("on_step_end", {"step": 1, "metric": {}}, "step, metrics; got algorithm, step, metric"),
        ("on_steps_end", {}, "no hook 'on_steps_end'; .* Did you mean 'on_step_end'?"),
    ],
)
@pytest.mark.parametrize("hooks", [[], [Watcher()]])
async def test_algorithm_that_tells_wrongly_is_told_so_with_and_without_listeners(
    hooks, hook, arguments, message
):
    caller, algorithm = HookCaller(hooks), OneStep()
    algorithm.set_context(RunContext(hooks=caller))
    with pytest.raises(ConfigError, match=message):
        await algorithm.tell(hook, **arguments)
    assert not caller.failures


def test_on_run_end_hides_no_error_of_the_algorithm(monkeypatch):
    hook = agl.Hook()
    hook.on_run_end = lambda: 1 / 0
    monkeypatch.setenv("AGL_STRICT_PLUGINS", "1")
    trainer = agl.Trainer(algorithm=OneStep(), strategy=SHM, hooks=hook)
    with pytest.raises(AlgorithmError, match="it was enough"):
        trainer.fit(halves, None, val_dataset=[1])


def test_on_run_end_is_called_although_on_run_start_raised(monkeypatch):
    told, tracker, bad = [], agl.Hook(), agl.Hook()
    tracker.on_run_start = lambda: told.append("start")
    tracker.on_run_end = lambda: told.append("end")
    bad.on_run_start = lambda: 1 / 0
    monkeypatch.setenv("AGL_STRICT_PLUGINS", "1")
    with pytest.raises(AlgorithmError):
        agl.Trainer(algorithm=agl.Baseline(), strategy=SHM, hooks=[tracker, bad]).fit(succeeds, [1])
    assert told == ["start", "end"]


def test_run_summary_changes_what_is_said_of_a_run():
    class Says:
        def run_summary(self, result, lines):
            lines[:] = [f"{len(lines) >= 1} {result.mean_reward}"]

    trainer = agl.Trainer(algorithm=agl.Baseline(), strategy="shm", hooks=[Says()])
    trainer.fit(succeeds, [1, 2])
    assert trainer.result.summary.splitlines()[-1] == "True 1.0"
