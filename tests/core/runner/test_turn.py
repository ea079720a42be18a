"""The end of an attempt and the claim of the next one, in one step."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.run_agents import cancelled, running, succeeds

import agl
from agl.store.base import LightningStore, Turn
from agl.store.forwarding import StandInStore
from agl.tracer import buffer


class Watched(StandInStore):
    """Notes which calls reach the store, and spans and claimed rollouts of each turn."""

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.turns: list[tuple[int, int]] = []

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        self.calls.append(operation)
        answer = await super().call(operation, arguments)
        if operation == "turn":
            self.turns.append((len(answer.spans), len(answer.claimed)))
        return answer


async def test_spans_end_and_next_claim_are_one_call(run_all, memory_store, monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(buffer, "BATCH_SECONDS", 60.0)  # a held-up loop writes early

    def agent(task):
        trace.get_tracer("tests").start_span("one").end()
        return 1.0

    store = Watched(memory_store)
    rollouts = await run_all(agent, store, list(range(5)))
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 5
    calls = Counter(store.calls)
    assert calls["dequeue_many_rollouts"] == 1
    assert calls["add_many_spans"] == 0
    assert store.turns == [(2, 1)] * 4 + [(2, 0)]


async def test_no_rollout_is_claimed_while_a_hook_keeps_it_waiting(run_all, memory_store):
    ages: list[float] = []

    class Slow(agl.Hook):
        async def on_rollout_start(self, *, rollout):
            ages.append(asyncio.get_running_loop().time())

        async def on_rollout_end(self, *, rollout):
            await asyncio.sleep(0.05)
            claimed = await memory_store.query_rollouts(status_in=["preparing", "running"])
            assert [one.rollout_id for one in claimed] == [rollout.rollout_id]
            ages.append(asyncio.get_running_loop().time())

    rollouts = await run_all(succeeds, memory_store, [1, 2, 3], hooks=[Slow()])
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 3
    assert (len(ages), ages) == (6, sorted(ages))


async def test_runners_share_what_is_queued(memory_store):
    num, begun = 16, 0
    all_begun = asyncio.Event()

    async def agent(task):
        nonlocal begun
        begun += 1
        if begun == num:
            loop.call_soon_threadsafe(all_begun.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(all_begun.wait(), loop))

    class Distant(Watched):
        async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
            answer = await super().call(operation, arguments)
            await asyncio.sleep(0.005)
            return answer

    loop = asyncio.get_running_loop()
    options = {"event": agl.ThreadingEvent(), "concurrency": num}
    async with (
        running(agent, Distant(memory_store), **options) as one,
        running(agent, Distant(memory_store), **options) as other,
    ):
        await asyncio.sleep(0.1)
        await memory_store.enqueue_many_rollouts(
            [agl.EnqueueRolloutRequest(input=number) for number in range(num)]
        )
        await asyncio.wait_for(all_begun.wait(), 60)
        options["event"].set()
        await asyncio.gather(one, other)
    share = Counter(rollout.attempt.worker_id for rollout in await memory_store.query_rollouts())
    assert len(share) == 2
    assert min(share.values()) >= 4


@pytest.mark.parametrize("stop", ["event", "cancel"])
async def test_what_was_claimed_with_the_last_end_is_given_back(memory_store, stop, until):
    class SlowTurn(Watched):
        async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
            answer = await super().call(operation, arguments)
            if isinstance(answer, Turn):
                await asyncio.sleep(0.2)
            return answer

    event, store = agl.ThreadingEvent(), SlowTurn(memory_store)
    for number in range(2):
        await memory_store.enqueue_rollout(number)
    async with running(succeeds, store, event=event) as task:
        await until(lambda: store.turns)
        if stop == "event":
            event.set()
            await task
        else:
            await cancelled(task)
    first, second = await memory_store.query_rollouts()
    assert (first.status, second.status) == ("succeeded", "requeuing")


@pytest.mark.parametrize("waits", ["on_rollout_end", "on_attempt_end"])
@pytest.mark.parametrize("stop", ["event", "cancel"])
async def test_runner_cancelled_in_a_hook_gives_back_what_it_claimed(memory_store, stop, waits):
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    hook = agl.Hook()
    setattr(hook, waits, wait)

    options = {"hooks": [hook], "event": agl.ThreadingEvent(), "grace_seconds": 0.0}
    for number in range(2):
        await memory_store.enqueue_rollout(number)
    async with running(succeeds, memory_store, **options) as task:
        await asyncio.wait_for(begun.wait(), 60)
        if stop == "event":
            options["event"].set()
        else:
            task.cancel()
        await asyncio.wait([task], timeout=60)
    first, second = await memory_store.query_rollouts()
    assert first.status == "succeeded"
    assert second.status in ("queuing", "requeuing")


async def test_runner_with_a_limit_claims_no_more(run_all, memory_store):
    async def agent(task):
        await asyncio.sleep(0.01)

    rollouts = await run_all(agent, memory_store, list(range(9)), num_rollouts=7, concurrency=3)
    assert Counter(rollout.status for rollout in rollouts) == {"succeeded": 7, "queuing": 2}


async def test_result_that_no_store_keeps_fails_its_attempt_only(run_all, memory_store):
    def agent(task):
        number = 1 << 60 if task == "bad" else 0
        return [agl.Span.from_attributes(attributes={}, name="own", sequence_id=number)]

    bad, good = await run_all(agent, memory_store, ["bad", "good"])
    assert (bad.status, good.status) == ("failed", "succeeded")
    error = bad.attempt.error
    assert (error.boundary, error.type) == ("store", "agl.errors.InvalidRecordError")


async def test_server_that_goes_away_and_returns_costs_nothing(run_all, memory_store, until):
    begun = 0

    async def agent(task):
        nonlocal begun
        begun += 1
        with agl.operation(task=task):
            await asyncio.sleep(0.2)
        return 1.0

    num = 12
    for number in range(num):
        await memory_store.enqueue_rollout(number)
    server = agl.LightningStoreServer(memory_store, port=0)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    running = asyncio.create_task(run_all(agent, client, num_rollouts=num, concurrency=4))
    await until(lambda: begun >= 6)
    await server.stop()
    await asyncio.sleep(0.5)
    assert not running.done()
    await server.start()
    rollouts = await running
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * num
    assert {rollout.attempt.sequence_id for rollout in rollouts} == {1}
    for rollout in rollouts:
        spans = await memory_store.query_spans(rollout.rollout_id)
        assert [span.sequence_id for span in spans] == [1, 2]
    await client.close()
    await server.stop()
