"""What scripts of 0.3 rely on: a test for each finding about them (D: bugs, C: public, S: seen).

D1, AgentOps with LangGraph imported at the top, is
``tests/plugins/tracers/real/test_langgraph.py``, where those are installed. S4 is
``test_infrastructure_failures.py``; S8 is in ``tests/plugins/inspect/test_cli_export.py``, and S10
in ``test_cli_doctor.py`` beside it.
"""

import asyncio
import json
import os
import threading
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

import agentlightning
import agl
from agl.execution.base import ExecutionEvent
from agl.types import Attributes, Span
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")


def span(name: str, number: int, start: float, end: float, attributes: Attributes) -> Span:
    """A span of one attempt, by its number."""
    return Span.from_attributes(
        name=name,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        start_time=start,
        end_time=end,
        attributes=attributes,
    )


def reward(value: float, number: int, at: float) -> Span:
    """A reward as 0.3 emits it."""
    prefix = "agentlightning.reward.0"
    attributes: Attributes = {f"{prefix}.name": "primary", f"{prefix}.value": value}
    return span("agentlightning.annotation", number, at, at, attributes)


def chat(prompt: list[int], answer: list[int]) -> Attributes:
    """Attributes of a model call with its tokens."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": "Hi"}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": "x"}]),
        "prompt_token_ids": prompt,
        "response_token_ids": answer,
        "agentlightning.response_logprobs": [-0.5] * len(answer),
    }


# --- D2, C23: an algorithm whose runners have ended


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_d2_algorithm_goes_on_to_its_own_end_after_the_last_runner(strategy: Any, tmp_path) -> None:
    done = tmp_path / "done"

    @agl.algo
    async def algorithm(store: agl.LightningStore, train_dataset: Any) -> None:
        queued = [await store.enqueue_rollout(task) for task in train_dataset]
        await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued])
        for _ in range(20):  # a train step, which asks the store for nothing
            await asyncio.sleep(0.05)
        done.write_text("saved")

    @agl.rollout
    async def agent(task: int) -> float:
        return 1.0

    agl.Trainer(algorithm=algorithm, strategy=strategy, max_rollouts=3).fit(agent, [1, 2, 3])
    assert done.read_text() == "saved"


def test_c23_algorithm_sees_the_event_before_it_is_cancelled() -> None:
    seen: list[str] = []

    async def algorithm(store: agl.LightningStore, event: ExecutionEvent) -> None:
        queued = await store.enqueue_rollout("nobody runs it")
        waiting = asyncio.create_task(
            store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=60)
        )
        try:
            while not event.is_set():  # noqa: ASYNC110 (it is an event between threads)
                await asyncio.sleep(0.01)
            seen.append("stopped by the event")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            waiting.cancel()

    async def runner(store: agl.LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        return None

    strategy = agl.SharedMemoryExecutionStrategy(graceful_delay=30)
    strategy.execute(algorithm, runner, agl.InMemoryLightningStore())
    assert seen == ["stopped by the event"]


# --- D3, C9, S3, S9: adapters


@pytest.mark.parametrize("adapter", ["TracerTraceToTriplet", "TraceToMessages", "TraceToRows"])
def test_d3_answer_of_azure_openai_is_read(adapter: str) -> None:
    attributes: Attributes = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "hi",
        "gen_ai.prompt.prompt_filter_results": '[{"prompt_index": 0}]',
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "0.7",
        "gen_ai.request.model": "gpt",
        "gen_ai.response.id": "chatcmpl-1",
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
        "agentlightning.response_logprobs": [-0.1],
    }
    call = span("openai.chat.completion", 1, 1.0, 2.0, attributes)
    read = getattr(agl, adapter)().adapt([call, reward(1.0, 2, 3.0)])
    assert len(getattr(read, "rows", read)) == 1


@pytest.mark.parametrize("offset", [0.0, -5.0, 5.0])
def test_c9_rewards_go_by_number_whatever_the_proxys_clock_says(offset: float) -> None:
    spans: list[Span] = []
    for number in range(2):
        at = 100.0 + 2 * number
        attributes: Attributes = {
            "llm.hosted_vllm.prompt_token_ids": f"[{number + 1}]",
            "llm.hosted_vllm.response_token_ids": f"[[{number + 1}]]",
            "gen_ai.response.id": f"r{number}",
        }
        begun = at + offset
        spans += [
            span("raw_gen_ai_request", 2 * number + 1, begun, begun + 1, attributes),
            reward(number + 1.0, 2 * number + 2, at + 1.5),
        ]
    triplets = agl.LlmProxyTraceToTriplet().adapt(spans)
    assert [each.reward for each in triplets] == [1.0, 2.0]


def test_s9_call_of_a_nameless_agent_continues_the_row_whose_tokens_it_begins_with() -> None:
    spans = [
        span("openai.chat.completion", 1, 1, 1.5, chat([1, 2, 3], [4])),
        span("openai.chat.completion", 2, 2, 2.5, chat([7, 8], [9])),
        span("openai.chat.completion", 3, 3, 3.5, chat([1, 2, 3, 4, 5], [6])),
        reward(1.0, 4, 4.0),
    ]
    rows = agl.TraceToRows().adapt(spans).rows
    assert sorted(list(row.token_ids) for row in rows) == [[1, 2, 3, 4, 5, 6], [7, 8, 9]]


# --- D4, D5, S2, S5, S11, C2: the store


@pytest.mark.parametrize("kind", ["InMemoryLightningStore", "LightningStoreThreaded"])
async def test_d4_requests_fields_are_arguments_of_enqueue_rollout(kind: str) -> None:
    store: agl.LightningStore = agl.InMemoryLightningStore()
    if kind == "LightningStoreThreaded":
        store = agl.LightningStoreThreaded(store)
    request = agl.EnqueueRolloutRequest(input=1, mode="train", metadata={"a": 1})
    rollout = await store.enqueue_rollout(**request.model_dump())
    assert (rollout.input, rollout.mode, rollout.metadata) == (1, "train", {"a": 1})


async def test_d5_object_that_a_runner_of_0_3_wrote_over_the_wire_comes_back() -> None:
    store = agl.InMemoryLightningStore()
    server = agl.LightningStoreServer(store, port=0)
    await server.start()
    try:
        rollout = await store.start_rollout("task")
        written = agl.Span.from_attributes(
            name="agentlightning.object",
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=1,
            attributes={
                "agentlightning.object.type": "bool",
                "agentlightning.object.literal": "False",
            },
        ).model_dump(mode="json")
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{server.endpoint}/v1/agl/spans", json=written) as response,
        ):
            assert response.status == 201
        (read,) = await store.query_spans(rollout.rollout_id)
        assert agl.get_object_value(read) is False
    finally:
        await server.stop()


async def test_s2_final_reward_over_all_attempts_is_that_of_the_last() -> None:
    store = agl.InMemoryLightningStore()
    config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
    queued = await store.enqueue_rollout(1, config=config)
    for notes, value, status in ((4, 0.1, "failed"), (0, 0.9, "succeeded")):
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        ids: Any = {"rollout_id": queued.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        made = [agl.emit_annotation({"i": i}, propagate=False) for i in range(notes)]
        for core in (*made, agl.emit_reward(value, propagate=False)):
            number = await store.get_next_span_sequence_id(*ids.values())
            await store.add_span(Span.from_core_fields(core, sequence_id=number, **ids))
        await store.update_attempt(*ids.values(), status=status)  # type: ignore
    numbers = [each.sequence_id for each in await store.query_spans(queued.rollout_id)]
    assert numbers == sorted(set(numbers))
    # 0.3's reader goes by the order of the list alone.
    values = map(agl.get_reward_value, await store.query_spans(queued.rollout_id))
    assert [value for value in values if value is not None][-1] == 0.9


async def test_s5_wrong_filter_and_unknown_key_are_refused_by_name() -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await server.start()
    try:
        base = f"{server.endpoint}/v1/agl"
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{base}/rollouts?status_in=bogus") as response:
                assert (response.status, "status_in" in await response.text()) == (422, True)
            body = {"rollouts": [{"input": 1, "inptu": 2}]}
            async with http.post(f"{base}/queues/rollouts/enqueue", json=body) as response:
                assert (response.status, "inptu" in await response.text()) == (422, True)
    finally:
        await server.stop()


async def test_s11_rollout_without_metadata_has_an_empty_mapping() -> None:
    store = agl.InMemoryLightningStore()
    (many,) = await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=1)])
    made = [many, await store.enqueue_rollout(1), await store.start_rollout(1)]
    assert [each.metadata for each in made] == [{}, {}, {}]


def test_s11_proxy_without_a_port_has_an_address_before_it_starts() -> None:
    entry: Any = {"model_name": "m", "litellm_params": {"model": "m", "api_base": "http://x/v1"}}
    proxy = agl.LLMProxy(model_list=[entry])
    port = urlsplit(proxy.as_resource(model="m").get_base_url()).port
    assert port is not None
    assert port > 0


class StoreOf03(agentlightning.LightningStore):
    """As a script of 0.3 has it: a part of the methods, no capabilities, no lock."""

    def __init__(self) -> None:
        self.calls = self.most_at_once = self.counter = 0

    async def get_latest_resources(self) -> agl.ResourcesUpdate | None:
        self.calls += 1
        self.most_at_once = max(self.most_at_once, self.calls)
        counter = self.counter
        await asyncio.sleep(0.001)
        self.counter = counter + 1
        self.calls -= 1
        return None


def test_c2_store_that_says_nothing_of_threads_is_never_called_twice_at_once() -> None:
    store = StoreOf03()  # type: ignore
    assert not store.capabilities.get("thread_safe")
    guarded = agl.LightningStoreThreaded(store)

    async def ask() -> None:
        await asyncio.gather(*(guarded.get_latest_resources() for _ in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (store.most_at_once, store.counter) == (1, 20)


# --- C6, C8, C12, S6, S7: names and calls


@agl.rollout
def one(task: Any) -> float:
    return 1.0


async def test_c8_and_c12_traces_are_written_as_in_the_published_example() -> None:
    pytest.importorskip("agentlightning")
    from agentlightning.utils.otel import filter_and_unflatten_attributes, flatten_attributes

    store, tracer = agl.InMemoryLightningStore(), agl.OtelTracer()
    rollout = await store.start_rollout("write")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context(name="write", **ids) as made:
            with made.start_as_current_span("outer") as outer:
                nested = {"request": {"sizes": [1, 2], "user": None}}
                flat = flatten_attributes(nested, expand_leaf_lists=True)
                assert flat.pop("request.user") is None
                outer.set_attributes(flat)
                with tracer.operation_context("inner") as recording:
                    recording.record_status("OK", "fine")
    inner, outer = await store.query_spans(rollout.rollout_id)
    assert (inner.name, inner.parent_id, inner.status.status_code) == ("inner", outer.span_id, "OK")
    assert filter_and_unflatten_attributes(outer.attributes, "request") == {"sizes": [1, 2]}


def test_s6_address_is_no_dataset() -> None:
    with pytest.raises(ValueError, match="'http://localhost:8000'"):
        agl.Trainer(strategy="shm").fit(one, "http://localhost:8000")  # type: ignore


def test_s7_method_of_0_1_gets_the_rollouts_id() -> None:
    class Agent(agentlightning.LitAgent[Any]):
        async def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> float:  # type: ignore
            assert "prompt" in resources
            return float(rollout_id.startswith("ro-"))

    store = agl.InMemoryLightningStore()
    resources: agl.NamedResources = {"prompt": agl.PromptTemplate(template="x")}
    trainer = agl.Trainer(strategy="shm", store=store, initial_resources=resources)
    trainer.dev(Agent(), [1])

    async def look() -> float | None:
        (rollout,) = await store.query_rollouts()
        return agl.find_final_reward(await store.query_spans(rollout.rollout_id))

    assert asyncio.run(look()) == 1.0


# --- S1, S3, S4: model calls


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_s1_calls_by_an_environment_variable_are_recorded_in_their_own_rollout(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "")

    @agl.rollout
    async def agent(task: int, llm: agl.LLM) -> float:
        os.environ["OPENAI_BASE_URL"] = llm.endpoint
        await asyncio.sleep(0.01)
        body = {"model": llm.model, "messages": [{"role": "user", "content": f"task {task}."}]}
        async with aiohttp.ClientSession() as http:
            for _ in range(2):
                url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
                async with http.post(url, json=body) as response:
                    assert response.status == 200
        return 1.0

    store = agl.InMemoryLightningStore()
    with EchoLLM() as llm:
        entry: Any = {"model_name": "m", "litellm_params": {"model": "m", "api_base": llm.url}}
        proxy = agl.LLMProxy(model_list=[entry])
        agl.Trainer(
            store=store,
            llm_proxy=proxy,
            strategy=strategy,
            initial_resources={"llm": proxy.as_resource(model="m")},
        ).dev(agent, list(range(6)))

    async def look() -> list[tuple[int, list[bool]]]:
        found: list[tuple[int, list[bool]]] = []
        for rollout in await store.query_rollouts():
            spans = await store.query_spans(rollout.rollout_id)
            asked = [str(each.attributes.get("gen_ai.input.messages", "")) for each in spans]
            own = [f"task {rollout.input}." in each for each in asked if each]
            found.append((rollout.input, own))
        return found

    assert asyncio.run(look()) == [(task, [True, True]) for task in range(6)]


def two_choices(request: dict[str, Any]) -> RawReply:
    choices = [
        {
            "index": index,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "token_ids": [10 + index],
            "logprobs": {"content": [{"token": "t", "logprob": -0.1}]},
        }
        for index, text in enumerate("ab")
    ]
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    body |= {"prompt_token_ids": [1, 2, 3], "choices": choices}
    return RawReply(200, json.dumps(body).encode())


async def test_s3_each_of_two_choices_is_in_a_bin() -> None:
    store = agl.InMemoryLightningStore()
    with EchoLLM(two_choices) as llm:
        entry: Any = {
            "model_name": "m",
            "litellm_params": {"model": "hosted_vllm/m", "api_base": llm.url},
        }
        proxy = agl.LLMProxy(store=store, model_list=[entry])
        await proxy.start()
        try:
            rollout = await store.start_rollout("task")
            ids = (rollout.rollout_id, rollout.attempt.attempt_id)
            body = {"model": "m", "n": 2, "messages": [{"role": "user", "content": "x"}]}
            url = f"{proxy.as_resource(*ids).get_base_url()}/chat/completions"
            async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
                assert len((await response.json())["choices"]) == 2
            await proxy.flush()
        finally:
            await proxy.stop()
    rows = agl.TraceToRows().adapt(list(await store.query_spans(rollout.rollout_id)))
    excluded = [each.reason for each in rows.ledger.exclusions if each.kind == "call"]
    assert sum(len(row.call_ids) for row in rows.rows) + len(excluded) == 2
