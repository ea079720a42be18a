import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl.errors import ConfigError
from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet

IDS = {"prompt_token_ids": [1, 2], "response_token_ids": [3]}
QUERIES = ("write_query", "check_query", "rewrite_query")


def summary(triplets) -> list[tuple]:
    return [(t.metadata["response_id"], t.reward, t.metadata["agent_name"]) for t in triplets]


def test_a_triplet_has_tokens_text_images_and_settings(trace) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/cat.png"}}
    content = [{"type": "text", "text": "what?"}, image]
    extra = {**IDS, "gen_ai.prompt.0.content": json.dumps(content)}
    extra["logprobs.content"] = json.dumps([{"token": "a", "logprob": -0.5}])
    trace.flat("c-1", extra={**extra, "gen_ai.request.temperature": 0.5})
    (triplet,) = TracerTraceToTriplet().adapt(trace.spans)
    assert triplet.prompt["token_ids"] == [1, 2]
    assert triplet.prompt["image_urls"] == ["http://x/cat.png"]
    assert triplet.prompt["raw_content"] == [{"role": "user", "content": content}]
    assert triplet.response["token_ids"] == [3]
    assert triplet.response["raw_content"][0]["content"] == "yes"
    assert triplet.response["logprobs"] == [{"logprob": -0.5}]
    assert triplet.metadata["request"] == {"model": "echo", "temperature": 0.5}
    assert triplet.metadata["response_id"] == "c-1"
    assert triplet.metadata["agent_name"] == "*"


def test_a_call_without_token_ids_is_kept_with_none(trace) -> None:
    trace.flat("c-1")
    (triplet,) = TracerTraceToTriplet().adapt(trace.spans)
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([], [])


def test_only_calls_within_a_matching_agent_are_taken(trace) -> None:
    graph = trace.span("graph", {"agent.name": "graph"}, start_time=0.0, end_time=99.0)
    for name in QUERIES:
        node = trace.span("node", {"langchain.chain.type": name}, parent_id=graph.span_id)
        trace.flat(name, parent_id=node.span_id)
    trace.flat("outside", parent_id=graph.span_id)
    everything = TracerTraceToTriplet(repair_hierarchy=False).adapt(trace.spans)
    agents = {response_id: agent for response_id, reward, agent in summary(everything)}
    assert agents == {**{name: name for name in QUERIES}, "outside": "graph"}
    assert len(everything) == 4
    chosen = TracerTraceToTriplet(agent_match="write", repair_hierarchy=False).adapt(trace.spans)
    assert [t.metadata["agent_name"] for t in chosen] == ["write_query", "rewrite_query"]


def test_each_reward_goes_to_the_last_call_before_it_that_has_none(trace) -> None:
    trace.flat("c-1")
    trace.reward(0.1)
    trace.flat("c-2")
    trace.flat("c-3")
    trace.reward(0.3)
    trace.reward(0.2)
    trace.reward(9.0)
    triplets = TracerTraceToTriplet(repair_hierarchy=False).adapt(trace.spans)
    assert summary(triplets) == [("c-1", 0.1, "*"), ("c-2", 0.2, "*"), ("c-3", 0.3, "*")]


def test_first_sibling_looks_among_the_children_of_one_span(trace) -> None:
    step = trace.span("step", start_time=0.0, end_time=99.0)
    trace.flat("inside", parent_id=step.span_id)
    trace.flat("outside")
    trace.reward(1.0, parent_id=step.span_id)
    adapter = TracerTraceToTriplet(repair_hierarchy=False, reward_match="first_sibling")
    rewards = {t.metadata["response_id"]: t.reward for t in adapter.adapt(trace.spans)}
    assert rewards == {"inside": 1.0, "outside": None}


def test_calls_of_a_judge_are_left_out_unless_asked_for(trace) -> None:
    trace.flat("agent")
    judge = trace.reward(1.0)
    trace.flat("judge", parent_id=judge.span_id)
    assert [t[0] for t in summary(TracerTraceToTriplet().adapt(trace.spans))] == ["agent"]
    everything = TracerTraceToTriplet(exclude_llm_call_in_reward=False).adapt(trace.spans)
    assert [t[0] for t in summary(everything)] == ["agent", "judge"]


def test_gateway_and_tracer_make_one_triplet_with_the_tokens(trace) -> None:
    agent = trace.span("agent", {"agent.name": "writer"}, start_time=0.0, end_time=999.0)
    trace.flat("c-1", parent_id=agent.span_id, start_time=10.0, end_time=20.0)
    trace.gateway([1], [2], response_id="c-1", start_time=11.0, end_time=19.0)
    trace.reward(0.5, start_time=30.0)
    (triplet,) = TracerTraceToTriplet(agent_match="writer").adapt(trace.spans)
    assert (triplet.prompt["token_ids"], triplet.reward) == ([1], 0.5)
    assert triplet.metadata["agent_name"] == "writer"


def test_a_failed_call_has_no_triplet_and_takes_no_reward(trace) -> None:
    trace.gateway([1], [2], response_id="c-1")
    trace.gateway(error="backend down")
    trace.reward(1.0)
    (triplet,) = TracerTraceToTriplet().adapt(trace.spans)
    assert (triplet.metadata["response_id"], triplet.reward) == ("c-1", 1.0)


def test_current_opentelemetry_names_are_known_and_others_can_be_given(trace) -> None:
    messages = {"gen_ai.input.messages": "[]", "gen_ai.operation.name": "chat"}
    trace.span("chat qwen", messages)
    trace.span("my.model.call", {"gen_ai.response.id": "mine"})
    trace.span("chatty tool")
    assert len(TracerTraceToTriplet().adapt(trace.spans)) == 1
    (mine,) = TracerTraceToTriplet(llm_call_match=r"^my\.").adapt(trace.spans)
    assert mine.metadata["response_id"] == "mine"


def test_spans_of_the_opentelemetry_sdk_are_read_too() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("openai.chat.completion") as span:
        span.set_attributes({"gen_ai.response.id": "c-1", **IDS})
    (triplet,) = TracerTraceToTriplet().adapt(exporter.get_finished_spans())
    assert triplet.prompt["token_ids"] == [1, 2]
    provider.shutdown()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        TracerTraceToTriplet(agent_match="(")
    with pytest.raises(ConfigError, match="expected first_occurrence or first_sibling"):
        TracerTraceToTriplet(reward_match="last")


def test_a_trace_deeper_than_the_recursion_limit_is_read(trace) -> None:
    parent = None
    for number in range(3000):
        parent = trace.span("step", parent_id=parent, start_time=float(number)).span_id
    trace.flat("deep", parent_id=parent)
    (triplet,) = TracerTraceToTriplet().adapt(trace.spans)
    assert triplet.metadata["response_id"] == "deep"


def test_proxy_calls_get_the_rewards_that_follow_them(trace) -> None:
    trace.gateway([1], [2], response_id="c-1")
    trace.reward(0.1)
    trace.gateway([1, 2, 3], [4], response_id="c-2")
    trace.reward(0.2)
    trace.gateway(response_id="without ids")
    one, two = LlmProxyTraceToTriplet().adapt(trace.spans)
    assert (one.prompt, one.reward) == ({"token_ids": [1]}, 0.1)
    assert (two.response["token_ids"], two.reward) == ([4], 0.2)
    assert two.metadata == {"response_id": "c-2"}


@pytest.mark.parametrize("skew", [0.0, -5.0, 5.0])
@pytest.mark.parametrize("adapter", [LlmProxyTraceToTriplet(), TracerTraceToTriplet()])
def test_rewards_are_matched_by_number_whatever_the_clocks_say(trace, adapter, skew) -> None:
    for number in range(2):
        start = 100.0 + 2 * number + skew
        ids = [number + 1], [number + 2]
        trace.gateway(*ids, response_id=f"c-{number}", start_time=start, end_time=start + 1)
        trace.reward(number + 1.0, start_time=101.5 + 2 * number, end_time=101.5 + 2 * number)
    assert [t.reward for t in adapter.adapt(trace.spans)] == [1.0, 2.0]


def test_the_two_spans_of_a_litellm_call_make_one_triplet(trace) -> None:
    given = {"gen_ai.response.id": "c-1", "prompt_token_ids": "[1, 2]", "response_token_ids": [3]}
    request = trace.span("litellm_request", given)
    raw = {"id": "c-1", "prompt_token_ids": "[1, 2]", "response_token_ids": "[[3]]"}
    raw = {f"llm.hosted_vllm.{key}": raw[key] for key in raw}
    trace.span("raw_gen_ai_request", raw, parent_id=request.span_id, start_time=request.start_time)
    trace.reward(1.0)
    (triplet,) = LlmProxyTraceToTriplet().adapt(trace.spans)
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3])
    assert triplet.reward == 1.0
