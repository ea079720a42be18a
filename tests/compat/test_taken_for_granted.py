"""What scripts of 0.3 take for granted and nobody writes down: kinds of errors, names, defaults."""

import argparse
import asyncio
import sys
from typing import Any

import pytest
from tests.interpreter import python

pytest.importorskip("agl_adapters")

import agentlightning as agl
from agentlightning.adapter.triplet import TraceTree
from agentlightning.algorithm.apo import APO
from agentlightning.types import Span

from .spans import span

pytestmark = pytest.mark.plugins


def test_refused_name_of_a_module_is_none_of_its_attributes() -> None:
    import agentlightning.store.mongo as mongo

    assert not hasattr(mongo, "MongoLightningStore")
    assert not hasattr(agl, "CollectionBasedLightningStore")
    assert getattr(mongo, "MongoLightningStore", None) is None
    with pytest.raises(AttributeError, match=r"mongo\.MongoLightningStore is not in agl: use Sqli"):
        mongo.MongoLightningStore  # noqa: B018  # pyright: ignore[reportUnusedExpression, reportAttributeAccessIssue]


def test_import_of_a_refused_name_shows_its_words_and_can_be_caught() -> None:
    with pytest.raises(ImportError, match=r"CollectionBasedLightningStore is not in agl: its sto"):
        from agentlightning import CollectionBasedLightningStore  # noqa: F401  # pyright: ignore
    with pytest.raises(ImportError, match=r"MongoLightningStore is not in agl: use SqliteLightnin"):
        from agentlightning.store.mongo import MongoLightningStore  # noqa: F401  # pyright: ignore


@pytest.mark.parametrize("owner", [TraceTree, TraceTree("a", Span.from_attributes(attributes={}))])
def test_refused_method_has_words_on_the_class_as_on_an_instance(owner: Any) -> None:
    with pytest.raises(
        AttributeError, match=r"TraceTree\.span_to_triplet is not in agl: use to_tr"
    ):
        owner.span_to_triplet  # noqa: B018
    assert not hasattr(owner, "span_to_triplet")


def test_method_of_0_1s_trainer_says_what_to_use() -> None:
    trainer = agl.Trainer(tracer=agl.OtelTracer())
    with pytest.raises(AttributeError, match=r"init_worker is not in agl: its processes are"):
        trainer.init_worker  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_refused_method_may_be_written_by_a_subclass() -> None:
    pytest.importorskip("agl_apo")

    class Own(APO[Any]):
        def get_seed_prompt_template(self) -> str:
            return "mine"

    assert Own.get_seed_prompt_template(Own.__new__(Own)) == "mine"


def test_what_a_store_refuses_is_a_value_error() -> None:
    for kind in ("UnknownRecord", "InvalidTransition", "InvalidQuery", "InvalidRecord"):
        assert issubclass(getattr(agl.errors, f"{kind}Error"), ValueError)
    mode: Any = "no"
    with pytest.raises(ValueError, match="no"):
        asyncio.run(agl.InMemoryLightningStore().enqueue_rollout({}, mode=mode))


class Silent(agl.Hook):
    """A hook that overrides nothing, as a base class of somebody's hooks does."""


@pytest.mark.parametrize("hooks", [agl.Hook(), Silent(), [Silent()], (Silent(), agl.Hook())])
def test_hook_that_overrides_nothing_is_taken_alone_or_in_a_list(hooks: Any) -> None:
    trainer = agl.Trainer(tracer=agl.OtelTracer(), hooks=hooks)
    assert all(isinstance(hook, agl.Hook) for hook in trainer.hooks)


def test_hook_with_a_misspelt_method_is_still_refused() -> None:
    class Misspelt(agl.Hook):
        async def on_rollout_ends(self, **about: Any) -> None: ...

    with pytest.raises(ValueError, match="Did you mean 'on_rollout_end'"):
        agl.Trainer(tracer=agl.OtelTracer(), hooks=Misspelt())


def test_span_made_by_hand_has_the_defaults_of_0_3() -> None:
    span = Span.from_attributes(attributes={"a": 1})
    assert (span.name, span.start_time, span.end_time) == ("agentlightning.virtual", None, None)
    assert Span.from_attributes(attributes={}, end_time=3.0).start_time is None


TOKENS = {"prompt_token_ids": [1, 2], "response_token_ids": [3]}
SAID = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "Hi",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Hello",
    "gen_ai.completion.0.finish_reason": "stop",
}


def scattered() -> list[Span]:
    """A call that happened within an agent, whose span hangs beside that of the agent."""
    return [
        span("session", 1, end=20.0),
        span("agent", 2, 1, 10.0, **{"agent.name": "writer"}),
        span("openai.chat.completion", 3, 1, 3.5, **TOKENS, **SAID),
        span("openai.chat.completion", 12, 1, 12.5, **TOKENS),
    ]


@pytest.mark.parametrize("of", [TraceTree.to_trajectory, None])
def test_what_was_not_recorded_is_none_and_an_answer_says_why_it_ended(of: Any) -> None:
    spans = scattered()
    tree = TraceTree.from_spans(spans)
    said, silent = tree.to_trajectory() if of else agl.TracerTraceToTriplet().adapt(spans)
    assert said.prompt["raw_content"] == [{"role": "user", "content": "Hi"}]
    assert said.response["raw_content"] == [
        {"role": "assistant", "content": "Hello", "finish_reason": "stop"}
    ]
    assert (silent.prompt["raw_content"], silent.response["raw_content"]) == (None, None)
    assert silent.metadata["request"] is None


def test_trajectory_is_of_the_tree_as_it_was_repaired() -> None:
    tree = TraceTree.from_spans(scattered())
    assert tree.to_trajectory(agent_match="writer") == []
    tree.repair_hierarchy()
    (triplet,) = tree.to_trajectory(agent_match="writer")
    assert triplet.metadata["agent_name"] == "writer"


def test_names_of_a_tree_say_which_span_is_which_agent() -> None:
    tree = TraceTree.from_spans(scattered()[:2])
    assert tree.names_tuple() == ("session", [("agent [writer]", [])])


@pytest.mark.parametrize("module", ["cli", "cli.store", "cli.prometheus", "cli.vllm"])
def test_command_is_run_as_a_module_too(module: str) -> None:
    done = python("-m", f"agentlightning.{module}", "--no-such-option")
    command = module.partition(".")[2]
    assert done.returncode == 2, done.stderr
    assert "--no-such-option" in done.stderr or f"agl: {command!r} needs vLLM" in done.stderr


class Done(agl.FastAlgorithm):
    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...


def trainer(**options: Any) -> agl.Trainer:
    return agl.Trainer(algorithm=Done(), strategy="shm", tracer=agl.OtelTracer(), **options)


def test_default_adapter_trains_the_agents_that_the_agent_names() -> None:
    class Agent(agl.LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

    given = trainer()
    given.fit(Agent(trained_agents="plan"))
    assert given.adapter.agent_match.pattern == "plan"
    given.fit(Agent())
    assert given.adapter.agent_match is None
    with pytest.raises(agl.errors.ConfigError, match="agent_match='other'"):
        trainer(adapter={"agent_match": "other"}).fit(Agent(trained_agents="plan"))


def test_methods_of_an_agent_that_0_3_did_not_call_are_named(caplog) -> None:
    class Agent(agl.LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

        def on_rollout_end(self, **about: Any) -> None: ...

    agent = Agent()
    trainer().fit(agent)
    assert "Agent.on_rollout_end is not called" in caplog.text
    assert "on_rollout_start" not in caplog.text
    caplog.clear()
    trainer(hooks=[agent]).fit(agent)
    assert "is not called" not in caplog.text


def test_algorithm_without_run_is_made_and_says_so_when_it_runs() -> None:
    class Marker(agl.FastAlgorithm): ...

    with pytest.raises(NotImplementedError, match=r"Marker has no run\("):
        Marker().run()
    assert isinstance(agl.FastAlgorithm(), agl.Algorithm)
    assert isinstance(agl.Baseline(), agl.FastAlgorithm)
    assert not isinstance(agl.Algorithm(), agl.FastAlgorithm)
    assert isinstance(agl.algo(lambda store: None), agl.Algorithm)
    with pytest.raises(AttributeError, match=r"get_client is not in agl: get_store\(\) has"):
        Marker().get_client()  # pyright: ignore[reportAttributeAccessIssue]


def test_port_of_a_strategy_without_a_server_is_refused_as_it_was_written() -> None:
    with pytest.raises(ValueError, match=r"port=14999.* no server_port; leave port out"):
        trainer(port=14999)


@pytest.mark.parametrize(
    ("params", "entry", "words"),
    [
        ({"temperature": 0.2}, {}, r"'temperature' \(what every .* 'forced_parameters'"),
        ({"input_cost_per_token": 0.1}, {}, r"'input_cost_per_token' \(a price is beside it"),
        ({}, {"model_info": {"id": "1"}}, r"'model_info' \(leave it out"),
    ],
)
def test_parameter_of_litellms_says_what_to_write(params: Any, entry: Any, words: str) -> None:
    params = {"model": "openai/x", "api_base": "http://127.0.0.1:1/v1", **params}
    with pytest.raises(ValueError, match=words):
        agl.LLMProxy(model_list=[{"model_name": "m", "litellm_params": params, **entry}])


def test_star_import_works_without_the_plugins_of_algorithms() -> None:
    code = """
import importlib.util, sys
found = importlib.util.find_spec
absent = ("agl_verl", "agl_apo")
importlib.util.find_spec = lambda name, *a: None if name in absent else found(name, *a)
sys.modules |= dict.fromkeys(absent)
from agentlightning import *
from agentlightning.algorithm import *
print(Trainer, Baseline)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_poml_trace_is_taken_and_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("agl_apo")
    from openai import AsyncOpenAI

    algorithm = APO[Any](AsyncOpenAI(api_key="x"), _poml_trace=True, beam_width=3)
    assert algorithm.beam_width == 3
    assert "_poml_trace=True) has no effect" in caplog.text
    with pytest.raises(TypeError, match="beam_widht"):
        APO[Any](AsyncOpenAI(api_key="x"), beam_widht=3)  # type: ignore[call-arg]


def test_texts_that_mean_none() -> None:
    from agentlightning.config import nullable_float, nullable_int, nullable_str

    texts = ["none", "Nil", "~", "NULL", "", " "]
    assert list(map(nullable_str, texts)) == [None, None, None, None, "", " "]
    assert nullable_float("~") is None
    with pytest.raises(argparse.ArgumentTypeError):
        nullable_int("")


def test_command_line_of_constructors_is_shown_with_dashes_and_takes_none(monkeypatch, capsys):
    class Tool:
        def __init__(self, max_steps: int | None, notes: str | None = "x") -> None:
            self.given = (max_steps, notes)

    for arguments, given in (
        ([], (None, "x")),
        (["--tool.max-steps", "3", "--tool.notes", "nil"], (3, None)),
        (["--tool.max_steps", "~"], (None, "x")),
    ):
        monkeypatch.setattr(sys, "argv", ["x", *arguments])
        assert agl.lightning_cli(Tool).given == given
    monkeypatch.setattr(sys, "argv", ["x", "--help"])
    with pytest.raises(SystemExit):
        agl.lightning_cli(Tool)
    assert "[--tool.max-steps INT | NONE]" in capsys.readouterr().out


def test_model_list_of_a_proxy_is_what_it_was_given() -> None:
    backend = {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:1/v1"}
    given: Any = [{"model_name": "m", "litellm_params": backend}]
    assert agl.LLMProxy(model_list=given).model_list == given


async def test_spans_that_a_client_reads_say_in_their_resource_whose_they_are() -> None:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await server.start()
    client, tracer = agl.LightningStoreClient(server.endpoint), agl.OtelTracer()
    rollout = await client.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(client):
        async with tracer.trace_context("t", store=client, **ids):
            agl.emit_reward(1.0)
    [span] = await client.query_spans(rollout.rollout_id)
    said = span.resource.attributes
    assert {name: said[f"agentlightning.{name}"] for name in ids} == ids
    await client.close()
    await server.stop()


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentlightning.object.json": "not json"},
        {"agentlightning.object.type": "foo", "agentlightning.object.literal": "1"},
        {"agentlightning.object.type": "int", "agentlightning.object.literal": "x"},
    ],
)
def test_object_that_cannot_be_read_is_a_runtime_error(attributes: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError):
        agl.get_object_value(Span.from_attributes(attributes=attributes, name="o"))


def test_default_is_made_where_its_parameter_is_there_and_not_given() -> None:
    from agentlightning import build_component

    class Kind:
        def __init__(self, a: int = 1) -> None:
            self.a = a

    def made(spec: Any, **defaults: Any) -> Any:
        about = {"expected_type": Kind, "spec_name": "kind", "optional_defaults": defaults}
        return build_component(spec, **about).a

    def never() -> int:
        raise AssertionError

    assert made(Kind, missing=never) == 1
    assert made({"type": Kind, "a": 2}, a=never) == 2
    assert made(Kind, a=lambda: 5) == 5


def test_parent_that_is_not_there_has_its_id_in_the_tree() -> None:
    about = {"attributes": {}, "trace_id": "1" * 32}
    spans = [Span.from_attributes(name=n, parent_id="f" * 16, **about) for n in ("a", "b")]
    tree = TraceTree.from_spans(spans)
    assert (tree.id, tree.span.span_id) == ("f" * 16, "f" * 16)
