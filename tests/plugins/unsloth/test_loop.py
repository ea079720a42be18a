"""The loop: what it writes down, counts, does again after an end of any kind, and for a replay."""

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import replace

import aiohttp
import pytest
from tests.digests import digests

import agl
from agl.algorithm.base import RunContext
from agl.errors import AlgorithmError, ConfigError
from agl.plugins.hooks import HookCaller
from agl_models.versions import Version
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")

from .looping import Counting, ask, fit, some_number

TASKS = ["one", "two", "three"]


@pytest.fixture
def llm():
    with EchoLLM(some_number) as server:
        yield server


@pytest.fixture
def counting(llm, tmp_path):
    def make(**options):
        return Counting(llm.url, **{"run_dir": str(tmp_path / "run"), **options})

    return make


async def redrawn(store):
    """From which places on all was drawn anew: mode, and after how many steps."""
    found = await store.query_documents("step")
    (places,) = [one.body["places"] for one in found if one.key.endswith("/redrawn")]
    return [("train" if place % 2 else "val", place // 2) for place in places]


async def test_every_iteration_serves_and_trains_the_version_before(counting, store, tmp_path):
    algorithm = await fit(counting(rollouts_per_task=4), store, TASKS, ["four", "five"])
    assert algorithm.served == ["start", "trained-1", "trained-2"]
    assert algorithm.trained == [("start", 1, 12), ("trained-1", 2, 12)]
    assert algorithm.cleaned == 1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary == {**json.loads(json.dumps(algorithm.summary)), "generation": 1}
    assert (summary["iterations"], summary["model"]) == (2, "trained-2")
    assert [version for version, _ in summary["val_rewards"]] == [0, 1, 2]
    assert summary["calls"] == 24 + 6 == summary["calls_trained"] + 6
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    steps = [one for one in metrics if "train/lines" in one]
    found = [(one["step"], one["examples"], one["train/lines"]) for one in steps]
    assert found == [(1, 12, 12), (2, 12, 12)]
    ledger = await agl.load_ledger(store)
    ledger.check()
    assert ledger.summary()["trained"] == 24
    rollouts = (await store.query_rollouts()).items
    assert Counter((r.mode, r.metadata["version"]) for r in rollouts) == {
        ("train", 0): 12,
        ("train", 1): 12,
        **{("val", version): 2 for version in range(3)},
    }


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("select", lambda collected, iteration: None, "expected a list of examples; got None"),
        ("train", lambda examples, version, number: None, r"expected Version\(1, .*got None"),
        ("train", lambda examples, version, number: Version(7, "x"), r"got Version\(number=7"),
    ],
)
async def test_what_a_trainer_returns_is_checked(
    counting, store, monkeypatch, method, given, words
):
    async def train(self, *arguments):
        return given(*arguments)

    method_of = {"select": lambda self, *arguments: given(*arguments), "train": train}[method]
    monkeypatch.setattr(Counting, method, method_of)
    with pytest.raises(AlgorithmError, match=f"{method} of Counting: .*{words}"):
        await fit(counting(), store, TASKS)


async def test_what_was_chosen_before_there_was_too_little_is_not_trained(
    counting, store, monkeypatch
):
    choose = Counting.select

    def select(self, *arguments):
        choose(self, *arguments)
        raise AlgorithmError("there is too little")

    monkeypatch.setattr(Counting, "select", select)
    with pytest.raises(AlgorithmError, match="there is too little"):
        await fit(counting(), store, TASKS)
    ledger = await agl.load_ledger(store)
    assert (ledger.trained, ledger.reasons()) == ([], {"not_selected": 12})


async def test_a_metric_that_is_no_number_is_left_out(counting, store, caplog):
    algorithm = counting(iterations=1)
    algorithm.measured = {"loss": float("nan"), "job": "j-1"}
    await fit(algorithm, store, TASKS)
    assert algorithm.versions[-1].metrics == {"lines": 12, "loss": None, "job": "j-1"}
    assert "train of Counting: metric 'loss' is nan; it is left out" in caplog.text


async def test_a_threshold_that_nothing_reached_can_be_lowered(counting, store):
    with pytest.raises(AlgorithmError, match=r"no rollout reached min_reward=2: of 12 rewards"):
        await fit(counting(min_reward=2.0), store, TASKS)
    assert await redrawn(store) == [("train", 0)]
    ledger = await agl.load_ledger(store)
    assert ledger.reasons() == {"below_threshold": 12}
    algorithm = counting(iterations=1, min_reward=0.0)
    algorithm.set_context(RunContext(is_forced=True))
    await fit(algorithm, store, TASKS)
    assert algorithm.trained == [("start", 1, 12)]
    ledger = await agl.load_ledger(store)
    ledger.check()
    assert ledger.summary()["calls"] == 12 == algorithm.summary["calls"]


async def test_a_model_that_is_gone_ends_the_run_which_goes_on_later(counting, store, llm):
    answered = 0

    def dies(body):
        nonlocal answered
        answered += 1
        gone = RawReply(503, b'{"error": {"message": "the engine is dead"}}')
        return some_number(body) if answered <= 14 else gone

    llm.reply = dies
    gateway = agl.LLMProxy(num_retries=0)
    words = r"all 12 train rollouts after step 1, the first with: .*the engine is dead.*run again"
    with pytest.raises(AlgorithmError, match=words):
        await fit(counting(iterations=3), store, TASKS, ["four"], gateway=gateway)
    llm.reply = some_number
    algorithm = await fit(counting(iterations=2), store, TASKS, ["four"])
    assert algorithm.trained == [("trained-1", 2, 12)]
    parts = [part for part in await agl.load_parts(store) if part.mode == "train"]
    trained = [item.key for part in parts for item in part.trained if item.kind == "call"]
    assert len(trained) == len(set(trained)) == 24


async def stop_amid(algorithm, store, *datasets, after):
    """Start it, and stop it in the middle of a rollout, when ``after`` others have ended."""
    begun, hangs = [], asyncio.Event()

    @agl.rollout
    async def hanging(task: str, llm: agl.LLM) -> float:
        begun.append(task)
        if len(begun) > after:
            hangs.set()
            await asyncio.Event().wait()
        return await ask(task, llm)

    running = asyncio.create_task(fit(algorithm, store, *datasets, agent=hanging))
    await hangs.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("options", "train"), [({}, ["mended", "two"]), ({"rollouts_per_task": 3}, ["one", "two"])]
)
async def test_other_tasks_give_a_collection_up_and_more_do_not(counting, store, options, train):
    had = {"iterations": 1, "rollouts_per_task": 2}
    await stop_amid(counting(**had), store, ["one", "two"], after=2)
    algorithm = await fit(counting(**{**had, **options}), store, train)
    if not options:
        assert await redrawn(store) == [("train", 0)]
    examples = 2 * algorithm.rollouts_per_task
    assert algorithm.trained == [("start", 1, examples)]
    trained = {part.rollout_id for part in await agl.load_parts(store) if part.trained}
    rollouts = await store.query_rollouts(rollout_id_in=sorted(trained))
    assert Counter(rollout.input for rollout in rollouts) == dict.fromkeys(train, examples // 2)


async def test_so_is_a_whole_collection_and_an_evaluation(counting, store, tmp_path):
    had = {"iterations": 1, "rollouts_per_task": 1}
    killed = counting(**had)
    killed.fails = True  # all are collected and noted
    with pytest.raises(OSError, match="disk is full"):
        await fit(killed, store, ["one", "two"], ["four"])
    options = {**had, "evaluation": {"copies": 3}}
    algorithm = await fit(counting(**options), store, ["mended", "two"], ["four"])
    assert await redrawn(store) == [("train", 0)]
    rollouts = await store.query_rollouts()
    assert Counter(one.input for one in rollouts if one.mode == "val") == {"four": 2 * 3}
    trained = {part.rollout_id for part in await agl.load_parts(store) if part.trained}
    inputs = {one.input for one in rollouts if one.rollout_id in trained and one.mode == "train"}
    assert inputs == {"mended", "two"}
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert sum("val/mean@3" in json.loads(line) for line in lines) == 2
    await check_sums(algorithm, store)


async def test_drop_group_sees_rollouts_that_were_drawn_again(counting, store, llm):
    options = {"iterations": 1, "rollouts_per_task": 2, "failures": "drop_group"}
    await stop_amid(counting(**options), store, ["one", "two"], after=1)
    (kept,) = [r for r in await store.query_rollouts() if r.status == "succeeded"]
    troubled = []

    def reply(body):
        if body["messages"][-1]["content"] == "trouble":
            return RawReply(503, b'{"error": {"message": "out of order"}}')
        return "77"

    @agl.rollout
    async def swallowing(task: str, llm: agl.LLM) -> float:
        if task == kept.input:  # the sibling that was cut off
            troubled.append(task)
            with contextlib.suppress(aiohttp.ClientResponseError):
                await ask("trouble", llm)
        return await ask(task, llm)

    llm.reply = reply
    algorithm = await fit(counting(**options), store, ["one", "two"], agent=swallowing)
    assert len(troubled) == 1
    assert algorithm.trained == [("start", 1, 2)]  # of the other task
    ledger = await agl.load_ledger(store)
    ledger.check()
    assert ledger.reasons() == {"infrastructure": 2, "unused_group": 1}


async def test_a_server_that_died_ends_the_run_and_what_it_failed_runs_again(store, tmp_path):
    dies = [True]

    def answer(body):
        is_dead = dies and body["messages"][0]["content"] == "two"
        return RawReply(500, b"{}") if is_dead else "77"

    class Dying(Counting):
        @contextlib.asynccontextmanager
        async def serve(self, version):
            async with super().serve(version) as served:

                async def why_silent():
                    return "it was killed" if dies else None

                yield replace(served, why_silent=why_silent)

    with EchoLLM(answer) as llm:
        options = {"iterations": 1, "rollouts_per_task": 1, "run_dir": str(tmp_path / "run")}
        with pytest.raises(AlgorithmError, match="it was killed"):
            await fit(Dying(llm.url, **options), store, TASKS)
        dies.clear()
        algorithm = await fit(Dying(llm.url, **options), store, TASKS)
    assert algorithm.trained == [("start", 1, 3)]
    inputs = Counter(rollout.input for rollout in await store.query_rollouts())
    assert inputs == {"one": 1, "two": 2, "three": 1}


async def test_hooks_see_steps_evaluations_versions_and_resources(counting, store):
    told = []

    class Watch(agl.Hook):
        def on_step_end(self, step, metrics):
            told.append(("step", step, metrics["train/lines"]))

        def on_evaluation_end(self, algorithm, step):
            told.append(("evaluation", step))
            if step == 1:
                algorithm.ask_to_end()  # no further version is made

        def on_checkpoint_saved(self, step, path):
            told.append(("checkpoint", step, path))

        def on_resources_published(self, resources):
            told.append(("resources", resources.resources_id.rpartition("-")[2]))

    algorithm = counting(iterations=2, rollouts_per_task=1)
    algorithm.set_context(RunContext(hooks=HookCaller([Watch()])))
    await fit(algorithm, store, TASKS, ["four"])
    served = [("resources", "val"), ("resources", "train")]
    made = [("step", 1, 3), ("checkpoint", 1, "trained-1")]
    assert told == [*served, ("evaluation", 0), *made, *served, ("evaluation", 1)]


async def test_a_version_that_is_damaged_is_trained_once_more(counting, store, tmp_path, caplog):
    await fit(counting(iterations=2), store, TASKS, ["four"])
    again = counting(iterations=2)
    again.is_whole, again.measured = lambda version: version.number < 2, {"loss": 0.5}
    await fit(again, store, TASKS, ["four"])
    assert "version 2 in trained-2 is damaged" in caplog.text
    assert again.trained == [("trained-1", 2, 12)]
    assert again.served == ["trained-2"]  # for its evaluation
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "examples" in line]
    assert steps == [1, 2]
    assert len(again.summary["rewards"]) == 2
    await check_sums(again, store)
    third = counting(iterations=2)
    third.is_budget_spent = lambda: True  # the evaluations were paid for
    await fit(third, store, TASKS, ["four"])
    assert third.trained == []
    assert third.summary["val_rewards"] == again.summary["val_rewards"]
    assert [version for version, _ in third.summary["val_rewards"]] == [0, 1, 2]
    await check_sums(third, store)


async def test_of_a_version_with_a_lost_checkpoint_nothing_is_paid_again(counting, store, tmp_path):
    await fit(counting(iterations=2), store, TASKS, ["four"])
    killed = counting(iterations=3)
    killed.fails = True
    with pytest.raises(OSError, match="disk is full"):
        await fit(killed, store, TASKS, ["four"])
    ran = len(await store.query_rollouts())
    (tmp_path / "run/checkpoints/step-000002/checkpoint.json").unlink()
    done = await fit(counting(iterations=3), store, TASKS, ["four"])
    assert [number for _, number, _ in done.trained] == [2, 3]  # the second is found again
    assert len(await store.query_rollouts()) == ran + 1
    await check_sums(done, store)


async def check_sums(algorithm, store):
    """The summary says what the ledger does."""
    parts = [part for part in await agl.load_parts(store) if not part.lost]
    assert algorithm.summary["rollouts"] == len(parts)
    ledger = await agl.load_ledger(store)
    ledger.check()
    assert algorithm.summary["calls"] == ledger.summary()["calls"]


@pytest.fixture
async def replaying(store, tmp_path):
    """Makes the algorithm of a run of two iterations that is there."""

    def make(kind=Counting):
        algorithm = kind("http://nowhere", run_dir=str(tmp_path / "run"))
        algorithm.set_store(store)
        algorithm.set_adapter(agl.TraceToRows())
        return algorithm

    with EchoLLM(some_number) as llm:
        await fit(Counting(llm.url, run_dir=str(tmp_path / "run")), store, TASKS)
    return make


async def test_a_version_is_selected_and_trained_from_the_one_before(replaying, store, tmp_path):
    before, algorithm = [digests(tmp_path), await noted(store)], replaying()
    found = await algorithm.replay(2)
    assert algorithm.trained == [("trained-1", 2, 12)]
    assert (algorithm.served, algorithm.cleaned) == ([], 1)
    assert found.first_difference is None
    assert (found.begun_at, found.is_exact) == (1, False)
    compared = {one.what: one.same for one in found.compared}
    assert {"rewards", "rows trained", "reward/mean", "train/lines"} <= compared.keys()
    # Nobody can say what their weights are.
    assert [compared.pop(f"weights after step {step}") for step in (1, 2)] == [None, None]
    assert set(compared.values()) == {True}
    fails = replaying()
    fails.min_reward = 2.0
    with pytest.raises(AlgorithmError, match="no rollout reached"):
        await fails.replay(2)
    assert [digests(tmp_path), await noted(store)] == before


async def noted(store):
    """What the store has of steps and accounts."""
    return [[*await store.query_documents(kind)] for kind in ("step", "ledger")]


async def test_what_is_missing_is_named(replaying):
    class Lost(Counting):
        def is_whole(self, version):
            return False

    found = await replaying(Lost).replay(2)  # from the beginning
    assert (found.begun_at, found.first_difference) == (0, None)
    other = replaying()
    other.set_store(agl.InMemoryLightningStore())
    with pytest.raises(ConfigError, match="has no step 1 of the run"):
        await other.replay(1)
