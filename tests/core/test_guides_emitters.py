"""What 0.3's guide to emitters shows, done with ``import agl``; see ``test_guides.py``."""

import asyncio
import json
from typing import Any, TypedDict

import opentelemetry.trace as trace_api
import pytest
from opentelemetry.semconv.attributes import server_attributes

import agl
from agl.semconv import AGL_ANNOTATION, AGL_OBJECT, AGL_OPERATION, LightningSpanAttributes
from agl.utils.otel import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)

PROMPT = agl.PromptTemplate(template="Be brief. {question}", engine="f-string")


async def run_one(agent: Any, task: Any = None, **options: Any) -> tuple[Any, list[agl.Span]]:
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step(task, **options)
    return rollout, list(await store.query_spans(rollout.rollout_id))


async def test_agent_emits_every_kind_of_feedback() -> None:
    class Plan(TypedDict):
        goal: str

    @agl.rollout
    def planner(task: Plan, prompt_template: agl.PromptTemplate) -> float:
        try:
            agl.emit_message("planning")
            steps = prompt_template.format(question=task["goal"]).split()
            agl.emit_object({"plan_steps": len(steps), "first_step": steps[0]})
            agl.emit_reward(0.25)
            if task["goal"] == "impossible":
                raise ValueError("no such plan")
            return 1.0
        except ValueError as error:
            agl.emit_exception(error)
            return 0.0

    for goal, last in [("tea", 1.0), ("impossible", 0.0)]:
        rollout, spans = await run_one(planner, {"goal": goal}, resources={"p": PROMPT})
        names = [span.name.removeprefix("agentlightning.") for span in spans]
        failure = ["exception"] if goal == "impossible" else []
        assert names == ["message", "object", "annotation", *failure, "annotation"]
        rewards = [agl.get_reward_value(span) for span in agl.find_reward_spans(spans)]
        assert rewards == [0.25, last]
        assert agl.find_final_reward(spans) == last
        assert rollout.status == "succeeded"
    exception = spans[3]
    assert exception.attributes["exception.type"] == "ValueError"
    assert exception.attributes["exception.message"] == "no such plan"
    assert "Traceback" in exception.attributes["exception.stacktrace"]


async def test_attributes_of_an_emitted_object_take_semantic_conventions() -> None:
    person = {"name": "Ada", "age": 36}

    @agl.rollout
    def agent(task: None) -> None:
        agl.emit_object(
            person,
            attributes={
                server_attributes.SERVER_ADDRESS: "127.0.0.1",
                server_attributes.SERVER_PORT: 8080,
                "meta": {"source": ["a", "b"]},
            },
        )

    _, (span,) = await run_one(agent)
    assert span.name == AGL_OBJECT
    assert span.attributes == {
        "agentlightning.object.type": "dict",
        "agentlightning.object.json": json.dumps(person),
        "server.address": "127.0.0.1",
        "server.port": 8080,
        "meta.source": ["a", "b"],
    }
    assert agl.get_object_value(span) == person


def test_emitting_without_a_tracer_raises_unless_kept_local() -> None:
    with pytest.raises(RuntimeError, match=r"No active tracer found\. Cannot emit object span"):
        agl.emit_object({"a": 1})
    assert agl.emit_object({"a": 1}, propagate=False).name == AGL_OBJECT
    assert agl.emit_reward(1, propagate=False).attributes["agentlightning.reward.0.value"] == 1.0


async def test_tags_are_written_and_read_back() -> None:
    tags = ["tool", "calculator", "fast"]

    @agl.rollout
    def agent(task: None) -> None:
        agl.emit_annotation(make_tag_attributes(tags))

    _, (span,) = await run_one(agent)
    assert span.attributes == {f"agentlightning.tag.{i}": tag for i, tag in enumerate(tags)}
    assert extract_tags_from_attributes(span.attributes) == tags


# Decorated at import time, where no tracer is active.
@agl.operation
def find_documents(query: str, max_results: int = 10) -> list[dict[str, str]]:
    return [{"title": f"About {query}"}][:max_results]


@agl.operation(category="tool", priority="high")
def calculate(expression: str) -> float:
    return float(sum(int(number) for number in expression.split("+")))


@agl.operation
async def call_api(endpoint: str, payload: dict[str, int]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"endpoint": endpoint, "sum": sum(payload.values())}


@agl.operation(name="custom-name")
def any_name() -> None:
    pass


@agl.operation(propagate=False)
def local_only() -> str:
    return "kept here"


async def test_operations_record_arguments_result_and_attributes() -> None:
    @agl.rollout
    async def agent(task: None) -> None:
        assert find_documents("cats") == [{"title": "About cats"}]
        assert calculate("1+2") == 3.0
        assert await call_api("/sum", {"a": 1, "b": 2}) == {"endpoint": "/sum", "sum": 3}
        any_name()
        assert local_only() == "kept here"

    _, spans = await run_one(agent)
    assert {span.name for span in spans} == {AGL_OPERATION}
    documents, sum_, api, named = (span.attributes for span in spans)
    assert documents["agentlightning.operation.name"] == "find_documents"
    assert documents[f"{LightningSpanAttributes.OPERATION_INPUT}.query"] == "cats"
    assert documents[f"{LightningSpanAttributes.OPERATION_INPUT}.max_results"] == 10
    assert documents[f"{LightningSpanAttributes.OPERATION_OUTPUT}.0.title"] == "About cats"
    assert (sum_["category"], sum_["priority"]) == ("tool", "high")
    assert sum_[LightningSpanAttributes.OPERATION_OUTPUT] == 3.0
    assert api[f"{LightningSpanAttributes.OPERATION_INPUT}.payload.b"] == 2
    assert api[f"{LightningSpanAttributes.OPERATION_OUTPUT}.sum"] == 3
    assert named["agentlightning.operation.name"] == "custom-name"


def test_local_operation_needs_no_tracer() -> None:
    assert local_only() == "kept here"
    with pytest.raises(RuntimeError, match="No active tracer"):
        any_name()


async def test_operation_as_a_context_manager() -> None:
    @agl.rollout
    def agent(task: None) -> None:
        with agl.operation(tool_name="web_search") as op:
            op.set_input(query="agents", filters={"year": "2024"})
            op.set_output({"result_count": 2, "top_result": "first"})

    _, (span,) = await run_one(agent)
    assert span.attributes == {
        "tool_name": "web_search",
        "agentlightning.operation.input.query": "agents",
        "agentlightning.operation.input.filters.year": "2024",
        "agentlightning.operation.output.result_count": 2,
        "agentlightning.operation.output.top_result": "first",
    }
    assert span.status.status_code == "OK"


async def test_annotation_is_linked_to_the_operation_that_it_judges() -> None:
    @agl.rollout
    def agent(task: None) -> None:
        for name in ("chat-41", "chat-42"):
            with agl.operation(conversation_id=name):
                if name == "chat-42":
                    links = make_link_attributes({"conversation_id": name})
                    agl.emit_annotation({**links, **make_tag_attributes(["reward", "good"])})

    _, spans = await run_one(agent)
    annotation = next(span for span in spans if span.name == AGL_ANNOTATION)
    operations = [span for span in spans if span.name == AGL_OPERATION]
    links = extract_links_from_attributes(annotation.attributes)
    (match,) = query_linked_spans(operations, links)
    assert match.attributes["conversation_id"] == "chat-42"
    assert annotation.parent_id == match.span_id


async def test_reward_is_linked_to_the_model_call_by_its_response_id() -> None:
    @agl.rollout
    def agent(task: None) -> None:
        for response_id in ("chatcmpl-1", "chatcmpl-2"):
            tracer = trace_api.get_tracer("an-instrumented-client")
            with tracer.start_as_current_span("chat") as span:
                span.set_attribute("gen_ai.response.id", response_id)
        links = make_link_attributes({"gen_ai.response.id": "chatcmpl-2"})
        agl.emit_reward(0.9, attributes=links)

    _, spans = await run_one(agent)
    (reward,) = agl.find_reward_spans(spans)
    (call,) = query_linked_spans(
        [span for span in spans if span is not reward],
        extract_links_from_attributes(reward.attributes),
    )
    assert call.attributes["gen_ai.response.id"] == "chatcmpl-2"
