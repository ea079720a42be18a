"""What scripts of 0.3 do, and agl does otherwise: C1 to C28 of the review, in agentlightning.

C1 and C28 are ``test_names.py``, C2 ``test_threaded_store.py``, C3, C10, C20 and C22
``test_differences.py``, C23 ``tests/seams/test_no_runner_left.py``; C6, C8 and C9 are among the
tests of trainer, tracer and triplets. C13, C15, C19, C25 and C27 are differences that the migration
page gives reasons for.
"""

import asyncio
import logging
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.models import call, entry

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")
pytest.importorskip("agentops")

import agentlightning as agl
from agentlightning.adapter.triplet import RewardMatchPolicy, TraceTree, Transition
from agentlightning.algorithm.apo import APO
from agentlightning.semconv import LinkPydanticModel, RewardPydanticModel
from agentlightning.store import LightningStoreServer
from agentlightning.tracer import AgentOpsTracer, OtelTracer
from agentlightning.types import Span
from agl.errors import ConfigError
from agl_testing.echo_llm import EchoLLM

from .spans import span

pytestmark = pytest.mark.plugins


@agl.rollout
def agent(task: Any) -> float:
    return 1.0


async def test_c26_one_rollout_is_waited_for() -> None:
    store = agl.InMemoryLightningStore()
    rollout = await store.start_rollout(1)
    assert await store.wait_for_rollout(rollout.rollout_id, timeout=0) is None
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    ended = await store.wait_for_rollout(rollout.rollout_id)
    assert ended.status == "succeeded"


async def test_c4_trace_under_agentops_begins_with_a_span_named_after_it() -> None:
    store = agl.InMemoryLightningStore()
    rollout = await store.start_rollout("x")
    tracer = AgentOpsTracer(agentops_managed=True, instrument_managed=True, daemon=True)
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("morning", **ids) as made:
            agl.emit_message("hello")
            with made.start_as_current_span("by hand"):
                pass
    spans = {each.name: each for each in await store.query_spans(rollout.rollout_id)}
    root = spans["morning.session"]
    assert root.attributes["agentops.span.kind"] == "session"
    assert root.attributes["operation.name"] == "morning"
    assert spans["agentlightning.message"].parent_id == spans["by hand"].parent_id == root.span_id


async def test_c4_rollout_is_named_in_the_span_that_the_runner_opens() -> None:
    store = agl.InMemoryLightningStore()
    runner: agl.LitAgentRunner[Any] = agl.LitAgentRunner(agl.AgentOpsTracer())
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step("x")
    names = [each.name for each in await store.query_spans(rollout.rollout_id)]
    assert f"{rollout.rollout_id}.session" in names


def test_c7_what_agentops_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="tags"):
        AgentOpsTracer().get_langchain_handler(tags=["a"])


def test_c5_algorithms_are_subscripted_with_a_type_of_task() -> None:
    pytest.importorskip("agl_apo")
    assert APO[dict[str, str]] is APO
    assert agl.APO is APO
    assert isinstance(agl.Baseline[int](), agl.Baseline)
    with pytest.raises(AttributeError, match="compute_textual_gradient is not in agl: run"):
        APO(api_key="x").compute_textual_gradient  # noqa: B018


def test_c11_component_is_built_from_a_registry_with_optional_defaults() -> None:
    registry = {"memory": "agentlightning.store.memory.InMemoryLightningStore"}
    made = agl.build_component(
        {"type": "memory"},
        expected_type=agl.LightningStore,
        spec_name="store",
        registry=registry,
        optional_defaults={"thread_safe": lambda: True, "nothing": 1},
    )
    assert type(made) is agl.InMemoryLightningStore
    wanted = {"expected_type": agl.Tracer, "spec_name": "tracer"}
    with pytest.raises(TypeError, match="tracer: expected a Tracer, got a InMemoryLightningStore"):
        agl.build_component("memory", registry=registry, **wanted)
    with pytest.raises(ValueError, match="'type' is missing"):
        agl.build_component({}, **wanted)
    assert agl.build_component(None, allow_none=True, **wanted) is None


def test_c21_trainer_has_defaults_and_attributes_of_0_3() -> None:
    trainer = agl.Trainer(n_workers=2, max_tasks=3, daemon=False)
    assert type(trainer.tracer) is agl.AgentOpsTracer
    assert type(trainer.adapter) is type(trainer.triplet_exporter) is agl.TracerTraceToTriplet
    assert type(trainer.strategy) is agl.ClientServerExecutionStrategy
    assert (trainer.n_runners, trainer.n_workers, trainer.max_rollouts) == (2, 2, 3)
    runner = trainer.runner
    assert isinstance(runner, agl.LitAgentRunner)
    assert runner.tracer is trainer.tracer
    named = agl.Trainer(
        strategy={"type": "shm", "n_runners": 1}, triplet_exporter={"agent_match": "a"}
    )
    assert type(named.strategy) is agl.SharedMemoryExecutionStrategy


def test_records_that_are_set_say_what_to_call_instead() -> None:
    llm = agl.LLM(endpoint="http://a", model="m")
    with pytest.raises(
        AttributeError, match=r"LLM\.endpoint was set.*by the store's add_resources or update_r"
    ):
        llm.endpoint = "http://b"
    config = agl.RolloutConfig()
    with pytest.raises(AttributeError, match=r"RolloutConfig\.timeout_seconds was set"):
        config.timeout_seconds = 1.0


def test_proxy_and_adapter_are_given_by_options_path_or_instance() -> None:
    path = "agentlightning.adapter.TraceToMessages"
    by_options = agl.Trainer(llm_proxy={"port": 4000}, adapter=path)
    assert isinstance(by_options.llm_proxy, agl.LLMProxy)
    assert by_options.llm_proxy.port == 4000
    assert isinstance(by_options.adapter, agl.TraceToMessages)
    options = {"agent_match": "plan_agent", "repair_hierarchy": False}
    assert isinstance(agl.Trainer(adapter=options).adapter, agl.TracerTraceToTriplet)
    adapter = agl.LlmProxyTraceToTriplet()
    assert agl.Trainer(adapter=adapter).adapter is adapter


def test_s7_method_of_0_1_gets_the_rollouts_id() -> None:
    class Agent(agl.LitAgent[Any]):
        async def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> float:  # type: ignore
            assert "prompt" in resources
            return float(rollout_id.startswith("ro-"))

    resources: agl.NamedResources = {"prompt": agl.PromptTemplate(template="x")}
    trainer = agl.Trainer(strategy="shm", tracer=OtelTracer(), initial_resources=resources)
    assert trainer.dev(Agent(), [1]).mean_reward == 1.0


CALL = {
    **{"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi"},
    **{"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Hello"},
    **{"gen_ai.response.id": "r-1", "prompt_token_ids": [1, 2], "response_token_ids": [3]},
}
REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}


def trace() -> list[Span]:
    root, call = span("ro-1.session", 1), span("openai.chat.completion", 2, 1, **CALL)
    return [root, call, span("agentlightning.annotation", 3, 1, **REWARD)]


def test_c14_entries_are_messages_and_tools_alone() -> None:
    (entry,) = agl.TraceToMessages().adapt(trace())
    assert set(entry) == {"messages", "tools"}
    assert [m["role"] for m in entry["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize("policy", RewardMatchPolicy)
def test_c16_reward_policies_are_members(policy: RewardMatchPolicy) -> None:
    (triplet,) = agl.TracerTraceToTriplet(reward_match=policy).adapt(trace())
    assert triplet.reward == 0.5
    assert RewardPydanticModel(name="a", value=1.0).value == 1.0
    assert LinkPydanticModel(key_match="a", value_match="b").key_match == "a"
    step = Transition(state=[1], action=[2], response_id=None, agent_name="a", reward=None)
    assert step.model_dump()["action"] == [2]


def test_c16_turns_without_tokens_are_left_out_where_asked_for() -> None:
    spans = trace()
    bare = {key: value for key, value in CALL.items() if "token" not in key}
    spans[1] = span("openai.chat.completion", 2, 1, **bare)
    assert len(agl.TracerTraceToTriplet().adapt(spans)) == 1
    assert agl.TracerTraceToTriplet(_skip_empty_token_spans=True).adapt(spans) == []


def test_c16_tree_of_a_trace_is_read_and_turned_into_a_trajectory() -> None:
    tree = TraceTree.from_spans([*trace(), span("agentlightning.message", 4)])
    session = [("openai.chat.completion", []), ("agentlightning.annotation", [])]
    below = [("ro-1.session", session), ("agentlightning.message", [])]
    assert tree.names_tuple() == ("virtual-root", below)
    call = tree.find_id(f"{2:016x}")
    assert call.span.name == "openai.chat.completion"
    assert [each.is_reward_span() for each in tree.traverse()] == [False, False, False, True, False]
    assert tree.to_json()["children"][0]["children"][0]["id"] == call.id
    tree.repair_hierarchy()
    (triplet,) = tree.to_trajectory()
    assert triplet.reward == 0.5
    (triplet,) = tree.to_trajectory(final_reward=0.9)
    assert triplet.reward == 0.9


def test_c16_tree_is_drawn_or_the_program_that_lacks_is_named(tmp_path: Path) -> None:
    adapter, path = agl.TracerTraceToTriplet(), str(tmp_path / "tree")
    if shutil.which("dot") and find_spec("graphviz"):
        assert adapter.visualize(trace(), path).children
        assert (tmp_path / "tree.png").exists()
    else:
        with pytest.raises(ConfigError, match=r"install.*names_tuple"):
            adapter.visualize(trace(), path)


async def test_c17_server_runs_forever_and_knows_its_store() -> None:
    store = agl.InMemoryLightningStore()
    server = LightningStoreServer(store, "127.0.0.1", 0)
    assert server.store is store
    await server.start()
    serving = asyncio.create_task(server.run_forever())
    client = agl.LightningStoreClient(server.address)
    rollout = await client.enqueue_rollout({"a": 1})
    assert await store.get_rollout_by_id(rollout.rollout_id) is not None
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await client.close()


async def test_server_on_loopback_is_open_unless_a_token_is_set(monkeypatch, caplog) -> None:
    caplog.set_level(logging.WARNING, "agl.compat")
    server = LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await server.start()
    path = "/v1/agl/statistics"
    assert (await asyncio.to_thread(httpx.get, server.address + path)).status_code == 200
    assert "asks for no token" in caplog.text
    await server.stop()
    monkeypatch.setenv("AGL_SERVER_TOKEN", "a-long-random-text-of-the-test")
    server = LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await server.start()
    assert (await asyncio.to_thread(httpx.get, server.address + path)).status_code == 401
    await server.stop()


async def test_proxy_by_hand_is_open_and_that_of_a_trainer_is_not() -> None:
    with EchoLLM(lambda request: "hello") as llm:
        models = [entry("m", llm.url)]
        proxy = agl.LLMProxy(model_list=models, store=agl.InMemoryLightningStore())
        await proxy.start()
        model = agl.LLM(endpoint=f"http://127.0.0.1:{proxy.port}/v1", model="m")
        assert (await call(model, "Hi"))[0] == 200
        await proxy.stop()
        trainer = agl.Trainer(llm_proxy={"model_list": models}, strategy="shm")
        assert type(trainer.llm_proxy) is agl.LLMProxy
        trainer.llm_proxy.set_store(agl.InMemoryLightningStore())
        await trainer.llm_proxy.start()
        url = f"http://127.0.0.1:{trainer.llm_proxy.port}/v1"
        assert (await call(model, "Hi", url))[0] == 401
        await trainer.llm_proxy.stop()


class Settings:
    def __init__(
        self,
        *,
        rate: float = 0.1,
        name: str | None = "x",
        steps: int,
        tags: list[str] | None = None,
    ) -> None:
        self.values = (rate, name, steps, tags)


class Other:
    def __init__(self, size_of: int = 3) -> None:
        self.size_of = size_of


def test_constructors_are_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "--settings.steps 4 --settings.name none --settings.tags a b --other.size-of 5"
    monkeypatch.setattr(sys, "argv", ["script", *line.split()])
    settings, other = agl.lightning_cli(Settings, Other)
    assert settings.values == (0.1, None, 4, ["a", "b"])
    assert other.size_of == 5
    monkeypatch.setattr(sys, "argv", ["script", "--settings.steps", "many"])
    with pytest.raises(SystemExit):
        agl.lightning_cli(Settings)
    monkeypatch.setattr(sys, "argv", ["script", "--trainer.n-workers", "2"])
    assert agl.lightning_cli(agl.Trainer).n_runners == 2


async def test_decorated_reward_functions_record_what_they_return() -> None:
    from agentlightning.emitter import reward

    @reward
    def judge(value: float) -> float:
        return value

    @reward
    async def judge_later(value: float) -> float:
        return value

    tracer = OtelTracer()
    async with tracer.trace_context("n"):
        assert judge(0.25) == 0.25
        assert await judge_later(0.75) == 0.75
    spans = tracer.get_last_trace()
    assert [agl.get_reward_value(each) for each in spans] == [0.25, 0.75]


def test_log_of_the_original_s_name_is_agls() -> None:
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    logger = logging.getLogger("agentlightning")
    before, propagate, level = list(logger.handlers), logger.propagate, logger.level
    agl.setup_logging("INFO", console=False, extra_handlers=[Keep()])
    logging.getLogger("agentlightning.mine").info("one")
    logging.getLogger("agl.store").info("two")
    logger.handlers, logger.propagate, logger.level = before, propagate, level
    assert [record.getMessage() for record in kept] == ["one", "two"]
