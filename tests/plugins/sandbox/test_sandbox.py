"""What every sandbox does, shown with the smallest one: a forked process without any wall."""

import asyncio
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import agl
from agl.errors import ConfigError, StoreUnavailableError
from agl.runner import LitAgentRunner
from agl.runner.report import SandboxedAgentError
from agl_sandbox.fork_server import ForkServer
from agl_sandbox.sandbox import JsonSandbox, OnMessage, run_attempt

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
Store = agl.InMemoryLightningStore


class ForkSandbox(JsonSandbox):
    """A fresh process for each attempt."""

    async def start(self, agent: agl.LitAgent[Any], tracer: agl.Tracer) -> None:
        self.findings = {}
        self._fork_server = ForkServer(lambda given, ask: run_attempt(agent, tracer, given, ask))

    async def run(self, attempt: dict[str, Any], on_message: OnMessage) -> Any:
        return await self._fork_server.call(attempt, on_message=on_message)

    def close(self) -> None:
        if self.findings is not None:
            self._fork_server.close()


class TalkingSandbox(ForkSandbox):
    """Behind its wall an agent has taken over the process."""

    def __init__(self, talk: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._talk = talk

    async def start(self, agent: agl.LitAgent[Any], tracer: agl.Tracer) -> None:
        self.findings = {}
        self._fork_server = ForkServer(lambda attempt, ask: self._talk(ask))


SEEN: list[int] = []


@agl.rollout
def plain(task: Any, rollout: agl.Rollout) -> float:
    SEEN.append(os.getpid())
    agl.emit_message(f"{task} in {os.getpid()}, for the {len(SEEN)}. time")
    agl.emit_reward(0.25)
    return 0.5


@agl.rollout
async def coroutine(task: Any) -> float:
    await asyncio.sleep(0)
    return plain(task, None)


@pytest.mark.parametrize("agent", [plain, coroutine])
async def test_rewards_and_spans_come_out(run_all, store, agent):
    rollouts = await run_all(agent, store, ["a", "b"], isolation=ForkSandbox())
    assert [r.status for r in rollouts] == ["succeeded"] * 2
    for rollout in rollouts:
        spans = await store.query_spans(rollout.rollout_id)
        message, early, final = spans
        assert [span.sequence_id for span in spans] == [1, 2, 3]
        assert (agl.get_reward_value(early), agl.get_reward_value(final)) == (0.25, 0.5)
        assert len({span.trace_id for span in spans}) == 1
        text = agl.get_message_value(message)
        assert text is not None
        assert text.startswith(f"{rollout.input} in ")
        assert text.endswith("for the 1. time")  # the second one does not see what the first did
        assert str(os.getpid()) not in text
    assert SEEN == []


@agl.rollout
def returns_spans(task: Any) -> Any:
    return [agl.emit_reward(0.75, propagate=False)]


async def test_returned_spans_come_out(run_one, store):
    attempt = await run_one(returns_spans, store, isolation=ForkSandbox())
    spans = await store.query_spans(attempt.rollout_id)
    assert agl.find_final_reward(spans) == 0.75


class OddError(Exception):
    pass


@agl.rollout
def fails(task: Any) -> None:
    if task == "exit":
        os._exit(0)
    if task == "text":
        return "well done"  # type: ignore
    if task == "stop":
        next(iter([]))
    raise OddError("no such city")


@agl.rollout
def needs_prompt(task: Any, prompt_template: agl.PromptTemplate) -> None:
    pass


@pytest.mark.parametrize(
    ("agent", "task", "boundary", "kind", "says"),
    [
        (fails, "raise", "agent", "OddError", "no such city"),
        (fails, "stop", "agent", "StopIteration", ""),
        (fails, "exit", "agent", "no_answer", "exit code 0, though it had not finished"),
        (fails, "text", "agent", "agl.errors.AgentResultError", "returned 'well done'"),
        (needs_prompt, "x", "resources", "MissingResourceError", "no resource for parameter"),
    ],
)
async def test_a_failure_comes_out_as_it_was(run_all, store, agent, task, boundary, kind, says):
    (rollout,) = await run_all(agent, store, [task], isolation=ForkSandbox())
    error = rollout.attempt.error
    assert rollout.status == "failed"
    assert (error.boundary, error.type.endswith(kind)) == (boundary, True)
    assert says in error.message
    if task == "raise":
        assert 'raise OddError("no such city")' in error.traceback


async def test_step_raises_what_the_agent_did(store):
    runner = LitAgentRunner(agl.OtelTracer(), isolation=ForkSandbox())
    raises = pytest.raises(SandboxedAgentError, match=r"OddError: no such city")
    with runner.run_context(agent=fails, store=store), raises as caught:
        await runner.step("raise")
    assert pickle.loads(pickle.dumps(caught.value)).failure == caught.value.failure


@agl.rollout
def sees_llm(task: Any, llm: agl.LLM) -> None:
    agl.emit_object(llm.model_dump())


async def test_a_gateway_is_handed_in_as_an_address_of_the_attempt(run_all, store):
    proxy = agl.ProxyLLM(
        endpoint="http://127.0.0.1:9/v1", model="m", api_key="the gateway's", asks_for_token=True
    )
    await store.add_resources({"llm": proxy})
    (rollout,) = await run_all(sees_llm, store, ["x"], isolation=ForkSandbox())
    spans = await store.query_spans(rollout.rollout_id)
    seen = agl.get_object_value(spans[0])
    assert seen["resource_type"] == "llm"
    assert f"/rollout/{rollout.rollout_id}/attempt/" in seen["endpoint"]
    assert "the gateway's" not in str(seen)
    assert "mint" not in str(seen)


async def test_each_agent_of_a_runner_has_a_sandbox_of_its_own(store):
    runner = LitAgentRunner(agl.OtelTracer(), max_rollouts=1, isolation=ForkSandbox())
    for agent in (fails, plain):
        await store.enqueue_rollout("x")
        with runner.run_context(agent=agent, store=store):
            await runner.iter()
    assert [r.status for r in await store.query_rollouts()] == ["failed", "succeeded"]


@pytest.mark.parametrize("writer", ["runner", "gateway", "algorithm", None])
async def test_spans_from_behind_a_wall_are_this_attempts_agents(run_one, store, writer):
    def forge(ask: Any) -> Any:
        ids = {"rollout_id": "other", "attempt_id": "other"}
        span = agl.Span.from_attributes(name="n", attributes={}, **ids).model_dump(mode="json")
        ask({"spans": [{**span, "writer": writer, "late": True}]})
        return {"reward": 1.0}

    attempt = await run_one(plain, store, isolation=TalkingSandbox(forge))
    spans = await store.query_spans(attempt.rollout_id)
    assert [span.attempt_id for span in spans] == [attempt.attempt_id] * 2
    assert (spans[0].writer, spans[0].late) == ("agent", False)


@pytest.mark.parametrize(
    "talk",
    [
        lambda ask: ask({"spans": "none"}),
        lambda ask: ask(["spans"]),
        lambda ask: ask({"spans": [{"name": "x"}]}),
        lambda ask: ask(None),
        lambda ask: {"failure": "bad"},
        lambda ask: {"spans": [1]},
        lambda ask: "done",
        lambda ask: None,
        lambda ask: {"reward": "1.0"},
        lambda ask: {"reward": [1.0]},
        lambda ask: {"failure": {"boundary": "agent", "type": "x" * 10**6, "message": ""}},
    ],
)
async def test_nonsense_from_a_sandbox_fails_its_attempt_and_no_other(run_all, store, talk):
    rollouts = await run_all(plain, store, ["a", "b"], isolation=TalkingSandbox(talk))
    assert [r.status for r in rollouts] == ["failed"] * 2
    assert all(len(r.attempt.error.type) < 1000 for r in rollouts)


class BrokenStore(Store):
    async def add_many_spans(self, spans: Any) -> Any:
        raise StoreUnavailableError("the disk is gone")


async def test_a_store_that_fails_ends_the_runner_and_blames_no_agent(run_all):
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        await run_all(plain, BrokenStore(), ["x"], isolation=ForkSandbox())


def test_none_is_no_sandbox_and_others_go_by_name():
    assert LitAgentRunner(agl.OtelTracer(), isolation="none")._isolation is None
    with pytest.raises(ConfigError, match=r"isolation: .*: expected a Sandbox, got the class"):
        agl.Trainer(runner={"isolation": "agl.store.memory:InMemoryLightningStore"})
    with pytest.raises(agl.errors.UnknownComponentError, match="unknown sandbox 'celar'"):
        agl.Trainer(runner={"isolation": "celar"})


@agl.rollout(grade=lambda task, private, result: float(result == private))
def graded(task: Any, rollout: agl.Rollout) -> Any:
    return [task, rollout.input, os.getpid()]


async def test_result_for_a_grader_comes_out_and_private_does_not_go_in(run_all, store):
    task = {"question": "6 * 7?", "private": 42}
    (rollout,) = await run_all(graded, store, [task], isolation=ForkSandbox())
    *_, grade = await store.query_spans(rollout.rollout_id)
    assert agl.get_object_value(grade)[:2] == [{"question": "6 * 7?"}] * 2
    assert agl.get_reward_value(grade) == 0.0
    assert rollout.input == task


def refuse(task: Any, private: Any, result: Any) -> float:
    raise ValueError(f"expected {private}")


async def test_behind_a_wall_the_log_repeats_no_grader(run_all, store, caplog):
    agent = agl.rollout(grade=refuse)(lambda task: None)
    for isolation in (ForkSandbox(), "none"):
        caplog.clear()
        *_, rollout = await run_all(agent, store, [{"private": 42}], isolation=isolation)
        assert "expected 42" in rollout.attempt.error.message
        assert ("expected 42" in caplog.text) == (isolation == "none")
        assert "failed (evaluator): agl.runner.sandbox.GraderError: " in caplog.text


@pytest.mark.parametrize("said", [{"reward": 1.0}, {"artefact": 1.0}, {"spans": []}, {}])
async def test_agent_that_took_over_its_sandbox_says_no_grade(run_all, store, said):
    sandbox = TalkingSandbox(lambda ask: said)
    (rollout,) = await run_all(graded, store, [{"private": 42}], isolation=sandbox)
    assert rollout.status == "succeeded"
    spans = await store.query_spans(rollout.rollout_id)
    assert agl.find_final_reward(spans) == 0.0
