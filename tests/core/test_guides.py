"""What the guides of Agent Lightning 0.3 show, done with ``import agl``, in one process.

Each Python snippet of those guides that uses only core names has a test here, in
``test_guides_emitters.py`` or, where it needs processes, in
``tests/acceptance/test_guides_roles.py``. Those that need plugins are in
``tests/acceptance/test_guides_plugins.py``; as they are written, with ``import agentlightning``,
the snippets run in ``tests/compat``.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, TypedDict

import opentelemetry.trace as trace_api
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

import agl
from agl.emitter import find_final_reward
from agl.errors import ConfigError
from agl.semconv import AGL_ANNOTATION
from agl_testing.echo_llm import EchoLLM

QUESTIONS = ["Why is the sea salty?", "What is the capital of France?"]
PROMPT = agl.PromptTemplate(template="Be brief. {question}", engine="f-string")


@agl.rollout
def explainer(task: str, prompt_template: agl.PromptTemplate) -> float:
    agl.emit_message(prompt_template.format(question=task))
    return 0.95


async def run_one(
    agent: agl.LitAgent[Any], task: Any = None, **options: Any
) -> tuple[agl.Rollout, list[agl.Span]]:
    """One rollout by a runner of its own; the rollout and its spans, as the store has them."""
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step(task, **options)
    spans = list(await store.query_spans(rollout.rollout_id))
    await store.close()
    return rollout, spans


def shm(**options: Any) -> dict[str, Any]:
    return {"type": "shm", "main_thread": "algorithm", "graceful_delay": 2.0, **options}


# --- debugging


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("agl")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.level, logger.propagate, logger.handlers = before


@pytest.mark.parametrize(("level", "shown"), [("DEBUG", True), ("INFO", False)])
def test_setup_logging_takes_a_level_by_name(
    level: str, shown: bool, logging_as_it_was: None, capsys: pytest.CaptureFixture[str]
) -> None:
    agl.setup_logging(level)
    logging.getLogger("agl.runner").debug("a detail")
    assert ("a detail" in capsys.readouterr().err) is shown


async def test_runner_in_isolation_runs_one_rollout_with_the_resources_given() -> None:
    tracer = agl.OtelTracer()
    runner = agl.LitAgentRunner(tracer)
    store = agl.InMemoryLightningStore()
    with runner.run_context(agent=explainer, store=store):
        rollout = await runner.step(QUESTIONS[0], resources={"main_prompt": PROMPT})
        (stored,) = await store.query_rollouts()
        message, reward = await store.query_spans(rollout.rollout_id)
    await store.close()
    assert (stored.rollout_id, stored.input) == (rollout.rollout_id, QUESTIONS[0])
    assert stored.status == "succeeded"
    assert (message.sequence_id, reward.sequence_id) == (1, 2)
    assert message.attributes["agentlightning.message.body"] == f"Be brief. {QUESTIONS[0]}"
    assert reward.name == AGL_ANNOTATION
    assert reward.attributes["agentlightning.reward.0.value"] == 0.95


async def test_hook_reads_the_trace_when_the_agent_has_returned() -> None:
    seen: list[tuple[str, str, dict[str, Any]]] = []

    class Debug(agl.Hook):
        async def on_trace_end(self, *, agent, runner, tracer, rollout) -> None:  # type: ignore[no-untyped-def]
            for span in tracer.get_last_trace():
                seen.append((span.name, span.status.status_code, dict(span.attributes)))

    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=explainer, store=store, hooks=[Debug()]):
        await runner.step(QUESTIONS[0], resources={"main_prompt": PROMPT})
    await store.close()
    name, status, attributes = seen[0]
    assert (name, status) == ("agentlightning.message", "OK")
    assert attributes["agentlightning.message.body"].startswith("Be brief.")


@pytest.mark.parametrize("fails", [False, True])
async def test_hooks_fire_around_the_trace_also_when_the_agent_fails(fails: bool) -> None:
    order: list[str] = []

    class Order(agl.Hook):
        async def on_rollout_start(self, *, agent, runner, rollout) -> None:  # type: ignore[no-untyped-def]
            order.append("rollout start")

        async def on_trace_start(self, *, agent, runner, tracer, rollout) -> None:  # type: ignore[no-untyped-def]
            order.append("trace start")

        async def on_trace_end(self, *, agent, runner, tracer, rollout) -> None:  # type: ignore[no-untyped-def]
            order.append("trace end")

        async def on_rollout_end(self, *, agent, runner, rollout, spans) -> None:  # type: ignore[no-untyped-def]
            order.append(f"rollout end {rollout.attempt.status}")

    @agl.rollout
    def agent(task: str) -> None:
        order.append("agent")
        if fails:
            raise ValueError("no answer")

    store = agl.InMemoryLightningStore()
    await store.enqueue_rollout("a task")
    runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=store, hooks=[Order()]):
        await runner.iter()
    await store.close()
    status = "failed" if fails else "succeeded"
    assert order == ["rollout start", "trace start", "agent", "trace end", f"rollout end {status}"]


def test_dev_runs_every_task_of_the_dataset() -> None:
    dataset: agl.Dataset[str] = QUESTIONS
    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(
        n_runners=1, initial_resources={"main_prompt": PROMPT}, strategy="shm", store=store
    )
    trainer.dev(explainer, dataset)
    rollouts = asyncio.run(store.query_rollouts())
    assert [(r.input, r.mode, r.status) for r in rollouts] == [
        (question, "train", "succeeded") for question in QUESTIONS
    ]


def test_dev_takes_the_names_that_one_guide_uses() -> None:
    seen: list[tuple[str, str]] = []

    @agl.rollout
    def agent(task: str, main_llm: agl.LLM) -> float:
        seen.append((task, main_llm.model))
        return 1.0

    llm = agl.LLM(
        endpoint="http://127.0.0.1:1/v1", model="m", sampling_parameters={"temperature": 0.7}
    )
    trainer = agl.Trainer(n_workers=1, initial_resources={"main_llm": llm}, strategy="shm")
    trainer.dev(agent, dev_dataset=QUESTIONS[:1])
    assert seen == [(QUESTIONS[0], "m")]
    assert trainer.n_runners == 1
    with pytest.raises(ConfigError, match="n_runners and n_workers are one setting"):
        agl.Trainer(n_runners=1, n_workers=2)


async def test_store_is_served_at_the_host_and_port_given() -> None:
    store = agl.InMemoryLightningStore()
    store_server = agl.LightningStoreServer(store, "127.0.0.1", 0)
    await store_server.start()
    client = agl.LightningStoreClient(store_server.endpoint)
    rollout = await client.enqueue_rollout({"question": QUESTIONS[0]})
    assert (await store.get_rollout_by_id(rollout.rollout_id)) == rollout
    await client.close()
    await store_server.close()


# --- traces


async def test_trace_context_brings_spans_to_the_store() -> None:
    store, tracer = agl.InMemoryLightningStore(), agl.OtelTracer()
    rollout = await store.start_rollout("a task")
    async with tracer.trace_context(
        name="my-rollout",
        store=store,
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
    ):
        with trace_api.get_tracer_provider().get_tracer("my-agent").start_as_current_span("work"):
            agl.emit_reward(0.5)
    spans = await store.query_spans(rollout.rollout_id)
    await store.close()
    assert sorted(span.name for span in spans) == [AGL_ANNOTATION, "work"]
    assert find_final_reward(spans) == 0.5
    assert sorted(s.span_id for s in tracer.get_last_trace()) == sorted(s.span_id for s in spans)


# --- writing agents


class Booking(TypedDict):
    date: str
    attendees: int


@agl.rollout
def room_selector(task: Booking, prompt_template: agl.PromptTemplate) -> float:
    return 1.0 if prompt_template.format(**task) == "A room for 3 on Friday" else 0.0


ROOMS = agl.PromptTemplate(template="A room for {attendees} on {date}", engine="f-string")


class RoomSelectorAgent(agl.LitAgent[Booking]):
    def rollout(self, task: Booking, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        prompt_template = resources["prompt_template"]
        assert isinstance(prompt_template, agl.PromptTemplate)
        return 1.0 if prompt_template.format(**task) == "A room for 3 on Friday" else 0.0


@pytest.mark.parametrize("agent", [room_selector, RoomSelectorAgent()])
def test_agent_is_trained_on_tasks_of_its_own_type(agent: agl.LitAgent[Booking]) -> None:
    dataset: agl.Dataset[Booking] = [
        Booking(date="Friday", attendees=3),
        Booking(date="Monday", attendees=3),
    ]
    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(strategy="shm", store=store, initial_resources={"prompt_template": ROOMS})
    trainer.fit(agent=agent, train_dataset=dataset, val_dataset=dataset[:1])

    async def rewards() -> list[tuple[str | None, float | None]]:
        return [
            (rollout.mode, find_final_reward(await store.query_spans(rollout.rollout_id)))
            for rollout in await store.query_rollouts()
        ]

    found = asyncio.run(rewards())
    assert sorted(found, key=str) == [("train", 0.0), ("train", 1.0), ("val", 1.0)]


async def test_agent_gets_llm_and_rollout_by_name(echo_llm: EchoLLM) -> None:
    from openai import OpenAI

    seen: list[tuple[str, str | None]] = []

    @agl.rollout
    def flight_assistant(task: dict[str, str], llm: agl.LLM, rollout: agl.Rollout) -> float:
        seen.append((rollout.rollout_id, rollout.mode))
        with OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "dummy-key") as client:
            response = client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": task["request"]}]
            )
        return 1.0 if task["request"] in (response.choices[0].message.content or "") else 0.0

    llm = agl.LLM(endpoint=echo_llm.url, model="echo", sampling_parameters={"temperature": 0.7})
    rollout, spans = await run_one(
        flight_assistant, {"request": "to Oslo"}, resources={"main_llm": llm}, mode="val"
    )
    assert seen == [(rollout.rollout_id, "val")]
    assert find_final_reward(spans) == 1.0


async def test_class_agent_reaches_resources_attempt_and_tracer() -> None:
    class SqlAgent(agl.LitAgent[dict[str, Any]]):
        # Like the guide's, its constructor does not call the base's.
        def __init__(self, max_turns: int) -> None:
            self.max_turns = max_turns
            self.seen: list[str] = []

        def rollout(
            self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
        ) -> float | None:
            llm: agl.LLM = resources["main_llm"]  # type: ignore[assignment]
            assert isinstance(rollout, agl.AttemptedRollout)
            self.seen = [llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)]
            handler = self.tracer.get_langchain_handler()  # None where LangChain is not installed
            assert handler is None or type(handler).__name__ == "BaseCallbackHandler"
            assert llm.sampling_parameters["temperature"] == 0.7
            return float(self.max_turns)

    agent = SqlAgent(max_turns=3)
    direct = agl.LLM(
        endpoint="http://host:1/v1", model="m", sampling_parameters={"temperature": 0.7}
    )
    _, spans = await run_one(agent, {"question": "?"}, resources={"main_llm": direct})
    assert agent.seen[0] == "http://host:1/v1"
    assert find_final_reward(spans) == 3.0
    # A runner that has agl-gateway gives it the same model behind a gateway.
    proxied = agl.ProxyLLM(**direct.model_dump(exclude={"resource_type"}))
    assert proxied.get_base_url("ro-1", "at-1") == "http://host:1/rollout/ro-1/attempt/at-1/v1"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_training_and_validation_have_methods_of_their_own(asynchronous: bool) -> None:
    class Plain(agl.LitAgent[str]):
        def training_rollout(self, task: str, resources: Any, rollout: Any) -> float:
            return 0.1

        def validation_rollout(self, task: str, resources: Any, rollout: Any) -> float:
            return 0.2

    class Async(agl.LitAgent[str]):
        async def training_rollout_async(self, task: str, resources: Any, rollout: Any) -> float:
            return 0.1

        async def validation_rollout_async(self, task: str, resources: Any, rollout: Any) -> float:
            return 0.2

    agent = Async() if asynchronous else Plain()
    for mode, reward in [("train", 0.1), ("val", 0.2), ("test", 0.2)]:
        _, spans = await run_one(agent, "a task", mode=mode)
        assert find_final_reward(spans) == reward


async def test_coroutine_agent_can_also_be_called_directly() -> None:
    @agl.rollout
    async def math_agent(task: dict[str, Any], llm: agl.LLM) -> float:
        await asyncio.sleep(0)
        return float(eval(task["input"]) == task["target"] and llm.model == "m")

    llm = agl.LLM(endpoint="http://host:1/v1", api_key="k", model="m")
    task = {"input": "1 + 1", "target": 2.0}
    assert await math_agent(task, llm) == 1.0
    _, spans = await run_one(math_agent, task, resources={"llm": llm})
    assert find_final_reward(spans) == 1.0


def core_fields(reward: float) -> agl.SpanCoreFields:
    return agl.SpanCoreFields(
        name="mine",
        status=agl.TraceStatus(status_code="OK"),
        attributes={"agentlightning.reward.0.value": reward},
        start_time=1.0,
        end_time=2.0,
    )


def readable_span(reward: float) -> ReadableSpan:
    span = TracerProvider().get_tracer("mine").start_span("mine")
    span.set_attribute("agentlightning.reward.0.value", reward)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


@pytest.mark.parametrize("kind", ["span", "core fields", "readable span"])
async def test_agent_may_return_its_whole_trace(kind: str) -> None:
    @agl.rollout
    def agent(task: str, rollout: agl.Rollout) -> list[Any]:
        if kind == "core fields":
            return [core_fields(0.1), core_fields(0.6)]
        if kind == "readable span":
            return [readable_span(0.1), readable_span(0.6)]
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}  # type: ignore[attr-defined]
        return [agl.Span.from_core_fields(core_fields(value), **ids) for value in (0.1, 0.6)]

    rollout, spans = await run_one(agent, "a task")
    assert rollout.status == "succeeded"
    assert [span.name for span in spans] == ["mine", "mine"]
    assert find_final_reward(spans) == 0.6


async def test_agent_that_returns_none_leaves_only_what_was_traced() -> None:
    @agl.rollout
    def agent(task: str) -> None:
        agl.emit_reward(0.7)

    rollout, spans = await run_one(agent, "a task")
    assert rollout.status == "succeeded"
    assert [agl.get_reward_value(span) for span in spans] == [0.7]


async def test_synchronous_agent_may_start_an_event_loop_of_its_own() -> None:
    @agl.rollout
    def agent(task: str) -> float:
        async def work() -> float:
            await asyncio.sleep(0)
            agl.emit_message("from the inner loop")
            return 0.4

        return asyncio.run(work())

    _, spans = await run_one(agent, "a task")
    assert [span.name for span in spans] == ["agentlightning.message", AGL_ANNOTATION]
    assert find_final_reward(spans) == 0.4


# --- algorithms


def test_own_algorithm_class_uses_what_the_trainer_sets() -> None:
    class KeepBest(agl.Algorithm):
        # Like the guide's, its constructor does not call the base's.
        def __init__(self, max_iterations: int) -> None:
            self.max_iterations = max_iterations
            self.seen: list[Any] = []

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store, data_adapter = self.get_store(), self.get_adapter()
            assert self.get_llm_proxy() is None
            for iteration in range(self.max_iterations):
                update = await store.add_resources(
                    {"p": agl.PromptTemplate(template=f"v{iteration} {{question}}")}
                )
                rollouts: list[agl.Rollout] = []
                for sample in train_dataset:
                    rollouts.append(
                        await store.enqueue_rollout(
                            input=sample, mode="train", resources_id=update.resources_id
                        )
                    )
                completed: list[agl.Rollout] = []
                while True:
                    completed = await store.wait_for_rollouts(
                        rollout_ids=[r.rollout_id for r in rollouts], timeout=0.0
                    )
                    if len(completed) == len(rollouts):
                        break
                    await asyncio.sleep(0.01)
                for rollout in completed:
                    spans = await store.query_spans(rollout.rollout_id, "latest")
                    self.seen.append(data_adapter.adapt(spans))

    class Messages(agl.TraceAdapter[list[str]]):
        def adapt(self, source: Any) -> list[str]:
            return [text for span in source if (text := agl.get_message_value(span))]

    algorithm = KeepBest(max_iterations=2)
    trainer = agl.Trainer(
        n_runners=2,
        algorithm=algorithm,
        adapter=Messages(),
        strategy=shm(),
        tracer=agl.OtelTracer(),
    )
    trainer.fit(explainer, QUESTIONS)
    assert algorithm.seen == [[f"v{i} {question}"] for i in range(2) for question in QUESTIONS]


# --- scaling out


def test_strategies_are_given_by_name_dict_or_instance() -> None:
    algorithm = agl.Baseline()
    by_name = agl.Trainer(algorithm=algorithm, n_runners=1, strategy="shm").strategy
    assert isinstance(by_name, agl.SharedMemoryExecutionStrategy)
    assert (by_name.main_thread, by_name.n_runners) == ("runner", 1)
    by_dict = agl.Trainer(
        algorithm=algorithm, strategy={"type": "shm", "n_runners": 8, "main_thread": "algorithm"}
    ).strategy
    assert isinstance(by_dict, agl.SharedMemoryExecutionStrategy)
    assert (by_dict.main_thread, by_dict.n_runners) == ("algorithm", 8)
    strategy = agl.SharedMemoryExecutionStrategy(main_thread="algorithm", n_runners=4)
    trainer = agl.Trainer(algorithm=algorithm, strategy=strategy)
    assert trainer.strategy is strategy
    assert trainer.n_runners == 4


def test_client_server_is_the_default_strategy_and_takes_a_port() -> None:
    algorithm = agl.Baseline()
    default = agl.Trainer(algorithm=algorithm, n_runners=8).strategy
    assert isinstance(default, agl.ClientServerExecutionStrategy)
    assert (default.n_runners, default.server_port) == (8, 0)
    trainer = agl.Trainer(
        algorithm=algorithm, n_runners=8, strategy={"type": "cs", "server_port": 9999}
    )
    assert isinstance(trainer.strategy, agl.ClientServerExecutionStrategy)
    assert (trainer.n_runners, trainer.strategy.server_port) == (8, 9999)
    placed = agl.Trainer(
        algorithm=algorithm,
        n_runners=1,
        strategy={
            "type": "cs",
            "server_host": "0.0.0.0",
            "server_port": 9999,
            "main_process": "runner",
        },
    ).strategy
    assert isinstance(placed, agl.ClientServerExecutionStrategy)
    assert (placed.server_host, placed.main_process) == ("0.0.0.0", "runner")


def test_environment_sets_port_role_and_managed_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SERVER_PORT", "10000")
    monkeypatch.setenv("AGL_CURRENT_ROLE", "algorithm")
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    strategy = agl.Trainer(algorithm=agl.Baseline(), n_runners=8, strategy="cs").strategy
    assert isinstance(strategy, agl.ClientServerExecutionStrategy)
    assert (strategy.server_port, strategy.role, strategy.managed_store) == (
        10000,
        "algorithm",
        False,
    )


def test_bundles_run_under_a_strategy_of_ones_own() -> None:
    class OneAfterTheOther(agl.ExecutionStrategy):
        def execute(self, algorithm: Any, runner: Any, store: agl.LightningStore) -> None:
            async def both() -> None:
                stop = agl.ThreadingEvent()
                runners = asyncio.create_task(runner(store, 0, stop))
                await algorithm(store, stop)
                stop.set()
                await runners

            asyncio.run(both())

    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(
        algorithm=agl.Baseline(), strategy=OneAfterTheOther(), store=store, max_rollouts=10
    )
    trainer.initial_resources = {"main_prompt": PROMPT}
    trainer.fit(explainer, QUESTIONS)
    statuses = [rollout.status for rollout in asyncio.run(store.query_rollouts())]
    assert statuses == ["succeeded", "succeeded"]


def test_max_rollouts_keeps_a_smoke_test_short() -> None:
    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(
        strategy="shm", store=store, max_rollouts=3, initial_resources={"main_prompt": PROMPT}
    )
    trainer.dev(explainer, ["again"] * 50)
    ended = asyncio.run(store.query_rollouts(status_in=["succeeded"]))
    assert len(ended) == 3
