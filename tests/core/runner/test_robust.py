"""What agents do to the loop, the threads and the records of a runner."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.interpreter import python
from tests.run_agents import succeeds

import agl

Store = agl.InMemoryLightningStore


async def test_agent_cancelled_before_its_first_step_is_not_stuck(run_all, memory_store):
    begun = threading.Event()

    async def agent(task: str) -> float:
        if task == "block":
            begun.set()
            time.sleep(1.0)  # noqa: ASYNC251 (that is the case)
        return 1.0

    await memory_store.enqueue_rollout("block")
    limit = agl.RolloutConfig(timeout_seconds=0.4)
    await memory_store.enqueue_rollout("waits", config=limit)
    # Were it stuck, the runner would have to be replaced: RunnerStuckError.
    options = {"num_rollouts": 2, "concurrency": 2, "on_stuck": "raise"}
    block, waits = await run_all(agent, memory_store, **options)
    assert begun.is_set()
    assert block.status == "succeeded"
    assert waits.attempt.error.boundary in ("lost", "timeout")


async def test_agent_that_emits_without_a_pause_ends_at_its_deadline(run_all, memory_store):
    ended = threading.Event()

    def agent(task: int) -> None:
        while not ended.is_set():
            agl.emit_reward(1.0)

    await memory_store.enqueue_rollout(0, config=agl.RolloutConfig(timeout_seconds=1.0))
    (rollout,) = await run_all(agent, memory_store, num_rollouts=1)
    ended.set()
    assert rollout.attempt.status == "timeout"


async def test_hook_is_told_the_status_that_the_store_has(run_all, memory_store):
    told: list[str] = []

    class Told(agl.Hook):
        async def on_rollout_end(self, *, rollout: agl.Rollout) -> None:
            told.append(rollout.status)

    async def agent(task: str, rollout: agl.Rollout) -> float:
        await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
        return 1.0

    (rollout,) = await run_all(agent, memory_store, ["x"], hooks=[Told()])
    assert told == [rollout.status] == ["cancelled"]


async def test_attribute_that_is_not_finite_costs_no_other_span(run_all, memory_store):
    from opentelemetry import trace

    async def agent(task: str) -> float:
        for number in range(30):
            with trace.get_tracer("library").start_as_current_span(f"call {number}"):
                pass
        with trace.get_tracer("library").start_as_current_span("metric") as span:
            span.set_attribute("score", float("nan"))
            span.set_attribute("scores", [1.0, float("-inf")])
        return 1.0

    (rollout,) = await run_all(agent, memory_store, ["x"])
    spans = await memory_store.query_spans(rollout.rollout_id)
    assert len(spans) == 32
    assert spans[30].attributes == {"score": "NaN", "scores": ["1.0", "-Infinity"]}
    assert agl.find_final_reward(spans) == 1.0


async def test_spans_too_many_for_one_request_are_stored_one_by_one(run_all):
    class Small(Store):
        async def turn(self, spans: Any = (), **options: Any) -> Any:
            if len(spans) > 2:
                raise agl.errors.InvalidRecordError("too much at once")
            return await super().turn(spans, **options)

    async def agent(task: str) -> Any:
        return [agl.Span.from_attributes(name=f"{n}", attributes={}) for n in range(5)]

    store = Small()
    (rollout,) = await run_all(agent, store, ["x"])
    assert (rollout.status, rollout.attempt.error) == ("succeeded", None)
    spans = await store.query_spans(rollout.rollout_id)
    assert [span.name for span in spans] == ["0", "1", "2", "3", "4"]
    await store.close()


async def test_thread_that_cannot_be_started_costs_one_attempt(run_all, memory_store, monkeypatch):
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "agl-agent":
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")  # as threading says it
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    first, second = await run_all(succeeds, memory_store, ["first", "second"])
    assert first.attempt.error.boundary == "lost"
    assert "can't start new thread" in first.attempt.error.message
    assert second.status == "succeeded"


LEAK = """
import asyncio, os, resource, time
import agl

resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
leaked, kept = [], []

def leak():
    try:
        while True:
            leaked.append(os.dup(0))
    except OSError:
        pass

@agl.rollout
async def agent(task):
    if task == "leak":
        loop = asyncio.get_running_loop()
        kept.append(loop)  # its descriptors must not be free for the next one
        loop.close = lambda: None
        loop._selector.close()  # it must be replaced
        await asyncio.sleep(30)
    return 1.0

class Free(agl.Hook):
    async def on_rollout_start(self, *, rollout):
        if rollout.input == "suffers":
            leak()

    async def on_rollout_end(self, *, rollout):
        if rollout.input == "suffers":
            while leaked:
                os.close(leaked.pop())

async def main():
    store = agl.InMemoryLightningStore()
    for task in ("leak", "suffers", "works"):
        await store.enqueue_rollout(task)
    runner = agl.LitAgentRunner(
        agl.OtelTracer(), max_rollouts=3, on_stuck=ON_STUCK, heartbeat_interval=3600.0
    )
    with runner.run_context(agent=agent, store=store, hooks=[Free()], worker_id=0):
        try:
            await runner.iter()
        except agl.errors.AglError as error:
            print("STUCK", type(error).__name__)
    for rollout in await store.query_rollouts():
        error = rollout.attempt.error if isinstance(rollout, agl.AttemptedRollout) else None
        print(rollout.input, rollout.status, error and (error.boundary, "could not be started" in
              error.message, "Too many open files" in error.message))

asyncio.run(main())
"""


@pytest.mark.parametrize("on_stuck", ["continue", "raise"])
def test_runner_without_file_descriptors_fails_the_attempt_and_does_not_hang(on_stuck):
    done = python("-c", LEAK.replace("ON_STUCK", repr(on_stuck)))
    lines = done.stdout.splitlines()
    assert "suffers failed ('lost', True, True)" in lines, done.stderr
    if on_stuck == "continue":
        assert "works succeeded None" in lines
    else:  # a process of its own is replaced
        assert "STUCK RunnerStuckError" in lines
        assert "works queuing None" in lines


async def test_agent_that_ends_before_its_cancellation_arrives_costs_no_other(
    run_all, memory_store, monkeypatch
):
    is_stopped = asyncio.Event()
    # In the agents' loop, which gets to it only later.
    monkeypatch.setattr("agl.runner.agent_call.AgentCall._cancel_task", lambda _: is_stopped.set())

    async def agent(task: str, rollout: agl.Rollout) -> float:
        if task == "deleted":
            await memory_store.delete_rollouts([rollout.rollout_id])
            await is_stopped.wait()
        else:
            await asyncio.sleep(2)
        return 1.0

    tasks = ["deleted", "sibling"]
    left = await run_all(agent, memory_store, tasks, concurrency=2, heartbeat_interval=0.1)
    assert [(one.input, one.status) for one in left] == [("sibling", "succeeded")]


@pytest.mark.parametrize("then", ["returns", "emits", "waits"])
async def test_deleting_a_rollout_under_way_drops_it_and_nothing_else(
    then, run_all, memory_store, caplog, monkeypatch
):
    # On a busy machine an agent that is told to stop needs longer than two seconds.
    monkeypatch.setattr("agl.runner.agent_call.CANCEL_SECONDS", 60.0)

    async def agent(task: str, rollout: agl.Rollout) -> float:
        if task == "deleted":
            await memory_store.delete_rollouts([rollout.rollout_id])
            if then == "emits":
                agl.emit_reward(1.0)
            await asyncio.sleep(30 if then == "waits" else 0)
        return 1.0

    tasks = ["deleted", "sibling", "later"]
    left = await run_all(agent, memory_store, tasks, concurrency=2, heartbeat_interval=0.1)
    ends = {one.input: one.status for one in left}
    assert ends == {"sibling": "succeeded", "later": "succeeded"}
    said = [one.getMessage() for one in caplog.records if one.levelname != "INFO"]
    assert ["was deleted while it ran" in line for line in said] == [True]
