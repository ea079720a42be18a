"""Graders: what they get, what their reward counts for, and how a grading fails."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import agl
from agl.errors import AgentResultError, ConfigError
from agl.runner import RolloutCancelledError
from agl.runner.sandbox import GraderError, grader_of
from agl_sandbox.rewards import ExactMatch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
Store = agl.InMemoryLightningStore
TASK = {"question": "6 * 7?", "private": {"answer": 42}}


async def step(agent, store, task=TASK, **options):
    runner = agl.LitAgentRunner(agl.OtelTracer(), **options)
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step(task)
    return rollout, list(await store.query_spans(rollout.rollout_id))


async def failed(agent: agl.LitAgent[Any], store: Store, **options: Any) -> agl.types.Failure:
    """The failure of a step that does not succeed."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - the failure is what is looked at
        await step(agent, store, **options)
    (rollout,) = await store.query_rollouts()
    assert isinstance(rollout, agl.AttemptedRollout)
    assert rollout.attempt.error is not None
    return rollout.attempt.error


def is_right(task: Any, private: Any, result: Any) -> float:
    return float(task == {"question": "6 * 7?"} and result == private["answer"])


def answers(grade: Any, result: Any = 1) -> agl.LitAgent[Any]:
    """An agent that gives this result, with such a grader."""

    @agl.rollout(grade=grade)
    async def agent(task):
        return result

    return agent


def gives(reward: Any) -> Any:
    """A grader that gives this reward."""
    return lambda task, private, result: reward


def sleeps(task: Any, private: Any, result: Any) -> None:
    time.sleep(60)


async def test_agent_with_a_grader_sees_no_private_and_no_hook_in_its_trace_does(store):
    seen: dict[str, Any] = {}

    class Watch(agl.Hook):
        async def on_rollout_start(self, *, rollout, **context):
            seen["start"] = rollout.input

        async def on_trace_start(self, *, rollout, **context):
            seen["trace"] = rollout.input

        async def on_rollout_end(self, *, rollout, **context):
            seen["end"] = rollout.input

    @agl.rollout(grade=gives(1.0))
    def agent(task, rollout):
        seen["task"], seen["rollout"] = task, rollout.input
        task["question"] = "1 + 1?"
        return 2

    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store, hooks=[Watch()]):
        await runner.step(TASK)
    assert seen.pop("end") == TASK, "the record in the store is whole"
    assert len(seen) == 4
    assert all("private" not in given for given in seen.values())


async def test_agent_without_a_grader_gets_its_task_as_it_is(store):
    @agl.rollout
    async def agent(task, rollout):
        return float(task == rollout.input == TASK)

    _, spans = await step(agent, store)
    assert agl.find_final_reward(spans) == 1.0


async def test_class_may_grade_in_a_coroutine_and_give_several_rewards(store):
    class Agent(agl.LitAgent[Any]):
        def rollout(self, task, resources, rollout):
            return {"answer": 42, "length": len(task["question"])}

        async def grade(self, task, private, result):
            await asyncio.sleep(0)
            right = float(result["answer"] == private["answer"])
            return {"right": right, "length": result["length"]}

    _, spans = await step(Agent(), store)
    rewards = [(one.name, one.value) for one in agl.get_rewards_from_span(spans[-1])]
    assert rewards == [("right", 1.0), ("length", 6.0)]


@pytest.mark.parametrize(("grade", "reward"), [(0.25, 0.25), (None, None)])
async def test_rewards_that_a_graded_agent_emits_do_not_count(store, grade, reward):
    @agl.rollout(grade=gives(grade))
    async def agent(task):
        agl.emit_reward(1.0)
        agl.emit_annotation({"agentlightning.graded": True, "reward": 1.0})

    _, spans = await step(agent, store)
    assert [agl.get_reward_value(span) for span in spans] == [1.0, 1.0, reward]
    assert agl.find_final_reward(spans) == reward
    without = [span for span in spans if "agentlightning.graded" not in span.attributes]
    assert agl.find_final_reward(without) == 1.0
    assert len({span.trace_id for span in spans}) == 1


async def test_grader_runs_in_a_fresh_process_and_an_empty_folder(store, tmp_path):
    def grade(task, private, result):
        folder = Path.cwd()
        assert list(folder.iterdir()) == []
        assert os.getpid() != result
        assert str(folder) not in sys.path
        (folder / "left").mkdir()
        (Path(private["folder"]) / f"{os.getpid()}").write_text(str(folder))
        return 1.0

    agent = answers(grade, os.getpid())
    for _ in range(2):
        await step(agent, store, {"private": {"folder": str(tmp_path)}})
    told = [Path(path.read_text()) for path in tmp_path.iterdir()]
    assert len(set(told)) == 2, "each has a process and a folder of its own"
    assert not any(folder.exists() for folder in told)


@pytest.mark.parametrize("entry", ["", "sub", "__editable__.thing.__path_hook__"])
async def test_grader_imports_from_where_its_runner_does(store, tmp_path, monkeypatch, entry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(entry)
    folder = tmp_path / ("sub" if entry == "sub" else "")
    folder.mkdir(exist_ok=True)
    (folder / "thing_to_import.py").write_text("value = 0.5")

    def grade(task, private, result):
        if entry.startswith("__"):
            return 0.5 if entry in sys.path else 0.0
        import thing_to_import  # type: ignore[import-not-found]

        return thing_to_import.value

    _, spans = await step(answers(grade), store)
    assert agl.find_final_reward(spans) == 0.5


async def test_many_results_are_graded_though_an_agent_hangs(run_all, store, tmp_path, until):
    def grade(task, private, result):
        (tmp_path / str(result)).touch()
        while len(list(tmp_path.iterdir())) < 3:  # each waits for the others
            time.sleep(0.01)
        return 1.0

    release = threading.Event()

    @agl.rollout(grade=grade)
    def agent(task):
        if task == "hangs":
            release.wait(20)
        return task

    running = asyncio.ensure_future(run_all(agent, store, ["hangs", 1, 2, 3], concurrency=4))
    try:
        async with asyncio.timeout(20):
            while len(await store.query_rollouts(status_in=["succeeded"])) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        release.set()
    assert {rollout.status for rollout in await running} == {"succeeded"}


async def test_grader_that_raises_fails_the_attempt_as_evaluator(store):
    def grade(task, private, result):
        raise ValueError("the data is wrong")

    @agl.rollout(grade=grade)
    async def agent(task):
        agl.emit_reward(1.0)
        return "an answer"

    failure = await failed(agent, store)
    assert failure.boundary == "evaluator"
    assert "ValueError: the data is wrong" in failure.message
    assert failure.traceback is not None
    assert "in grade" in failure.traceback
    (rollout,) = await store.query_rollouts()
    spans = await store.query_spans(rollout.rollout_id)
    assert agl.get_object_value(spans[-1]) == "an answer", "what was graded can be seen"
    assert agl.find_final_reward(spans) is None


@pytest.mark.parametrize(
    ("grade", "says"),
    [
        ("'one'", "a reward is a number; got 'one' (str)"),
        ("float('nan')", "must be finite"),
        ("{}", "must have one"),
        ("[1.0]", "a reward is a number"),
        ("exit(3)", "SystemExit"),
        ("os._exit(0)", "gave no answer"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
async def test_grader_without_a_reward_fails_the_attempt(store, grade, says):
    agent = answers(lambda task, private, result: eval(grade))
    failure = await failed(agent, store)
    assert failure.boundary == "evaluator"
    assert says in failure.message


async def test_grader_that_takes_too_long_is_killed(store):
    agent = answers(sleeps)
    failure = await failed(agent, store, grade_timeout=0.5)
    assert failure.boundary == "evaluator"
    assert "longer than 0.5 seconds" in failure.message
    grader: Any = grader_of(agent)
    assert psutil.Process(grader.fork_server._pid).children(recursive=True) == []


async def test_grader_that_takes_the_rest_of_a_rollouts_time_fails(run_one):
    config = agl.RolloutConfig(timeout_seconds=6.0)
    for _ in range(3):  # on a machine so busy that its 3 s of room pass, the rollout's limit acts
        attempt = await run_one(answers(sleeps), agl.InMemoryLightningStore(), config=config)
        if attempt.error.boundary != "timeout":
            break
    assert (attempt.status, attempt.error.boundary) == ("failed", "evaluator")
    assert attempt.end_time - attempt.start_time < 10


def nested(levels: int) -> Any:
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (object(), "what JSON can hold"),
        (float("nan"), "without NaN"),
        ("x" * 16 * 1024 * 1024, r"16777218 bytes of JSON .* at most 16777216"),
        *((nested(n), "nested deeper than 200 levels|depth exceeded") for n in (192, 201, 100_000)),
    ],
)
async def test_result_is_json_of_a_bounded_size_and_depth(store, result, says):
    with pytest.raises(AgentResultError, match=says):
        await step(answers(gives(1.0), result), store)
    (rollout,) = await store.query_rollouts()
    assert rollout.attempt.error.boundary == "agent"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("result", "graded"),
    [
        (None, None),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        (("tuple", {1: 2}), ["tuple", {"1": 2}]),
        (agl.types.RewardDimension(name="model", value=1), {"name": "model", "value": 1.0}),
        ("\ud83d of an emoji", "\ud83d of an emoji"),
    ],
)
async def test_whatever_json_can_hold_is_graded(store, result, graded):
    agent = answers(lambda task, private, result: float(result == graded), result)
    _, spans = await step(agent, store)
    assert agl.find_final_reward(spans) == 1.0


async def test_task_that_is_no_json_is_refused_before_its_agent_runs(store):
    ran = False

    @agl.rollout(grade=gives(1.0))
    async def agent(task):
        nonlocal ran
        ran = True

    with pytest.raises(GraderError, match="must be JSON"):
        await step(agent, store, {"question": {1}})
    assert not ran


@pytest.fixture
def slow(tmp_path):
    """An agent whose grading leaves a file as it begins, and goes on until there is another."""
    began, go = tmp_path / "began", tmp_path / "go"

    def grade(task, private, result):
        began.touch()
        while not go.exists():
            time.sleep(0.01)
        return 1.0

    return answers(grade), began, go


async def test_grading_of_a_cancelled_rollout_is_stopped(run_one, store, slow, until):
    agent, began, _ = slow
    running = asyncio.ensure_future(run_one(agent, store, heartbeat_interval=0.1))
    await until(began.exists)
    (rollout,) = await store.query_rollouts()
    await store.update_rollout(rollout.rollout_id, status="cancelled")
    async with asyncio.timeout(20):
        await running


async def test_step_stops_a_grading_on_its_event(store, slow, until):
    agent, began, _ = slow
    event = agl.ThreadingEvent()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        stepping = asyncio.ensure_future(runner.step(TASK, event=event))
        await until(began.exists)
        event.set()
        with pytest.raises(RolloutCancelledError, match="while it was graded"):
            await stepping


async def test_attempt_gives_signs_of_life_while_it_is_graded(run_one, store, slow, until):
    agent, began, go = slow
    running = asyncio.ensure_future(run_one(agent, store, heartbeat_interval=0.1))
    await until(began.exists)
    (rollout,) = await store.query_rollouts()
    start = time.time()
    last = 0.0
    async with asyncio.timeout(20):
        while last < start:
            await asyncio.sleep(0.02)
            attempt = await store.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            last = attempt.last_heartbeat_time or 0.0
    go.touch()
    assert (await running).status == "succeeded"


async def test_runner_without_its_process_for_graders_wants_to_be_replaced(run_all, store):
    @agl.rollout(grade=gives(1.0))
    async def agent(task):
        grader: Any = grader_of(agent)
        os.kill(grader.fork_server._pid, 9)
        return 1

    with pytest.raises(agl.errors.RunnerStuckError, match="nothing can be graded any more"):
        await run_all(agent, store, [1], on_stuck="raise")
    (rollout,) = await store.query_rollouts()
    assert rollout.attempt.error.boundary == "evaluator"  # type: ignore[union-attr]


@pytest.mark.parametrize("method", [lambda answer, truth: 1.0, lambda: 1.0, lambda result: 1.0])
def test_method_named_grade_that_is_no_grader_is_refused(method):
    with pytest.raises(ConfigError, match=r"a grader has \(task, private, result\)"):
        agl.rollout(grade=method)(lambda task: 1.0)
    for decorator, function in (
        (agl.llm_rollout, lambda task, llm: 1.0),
        (agl.prompt_rollout, lambda task, prompt_template: 1.0),
    ):
        with pytest.raises(ConfigError, match="a grader has"):
            decorator(grade=method)(function)
        assert decorator(grade=is_right)(function).grade_method() is is_right


def test_exact_match_compares_with_what_the_task_keeps():
    grade = ExactMatch(ignore_case=True)
    assert [grade({}, {"answer": "A"}, each) for each in (" a\n", "b", 1)] == [1.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="the task has no 'answer' under 'private'"):
        grade({}, None, "a")


def test_agent_with_another_thing_named_grade_has_no_grader():
    class Agent(agl.LitAgent[Any]):
        grade = 3  # type: ignore[assignment]

    assert Agent().grade_method() is None
    assert grader_of(Agent()) is None


def test_grader_is_refused_where_no_process_can_be_forked(monkeypatch):
    agent = agl.rollout(grade=is_right)(lambda task: 1)
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(sys, "platform", "win32")
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with pytest.raises(ConfigError, match="needs processes that are forked, and win32 has none"):
        runner.init(agent)


def test_process_for_graders_ends_with_its_agent():
    agent = agl.rollout(grade=is_right)(lambda task: 1)
    grader: Any = grader_of(agent)
    assert grader_of(agent) is grader
    pid = grader.fork_server._pid
    del agent, grader
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
