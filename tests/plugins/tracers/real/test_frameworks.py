"""Each framework through the gateway, and with a tracer alone: what the spans hold, what rows come.

Without a gateway the agent talks straight to the model's server, which sends token ids and
log-probabilities with every chat completion; whatever is known then, the tracer's spans know.

The frameworks are imported before the tracer begins, as they are in people's scripts;
``closed_network.py`` imports some of them later.
"""

from collections import Counter
from typing import Any

import pytest
from frameworks import FRAMEWORKS
from gateway_run import gateway_of
from scene import AGENT, ANSWER, QUESTION, TOOL_RESULT, reply

import agl
from agl.algorithm.gateway import is_gateway_span
from agl.store.memory import InMemoryLightningStore
from agl.types import Span
from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_records.training_data import ModelCall
from agl_testing.echo_llm import EchoLLM

for each in FRAMEWORKS.values():
    if each.missing() is None:
        each.load()


def reply_with_token_ids(request: dict[str, Any]) -> Any:
    """As a server that was told to send them whoever asks."""
    request["return_token_ids"] = request["logprobs"] = True
    return reply(request)


async def through_gateway(store, tracer, framework):
    """The spans of one rollout whose agent was given its own address at the gateway."""
    async with gateway_of(reply, store) as proxy:
        rollout_id = await rollout_of(
            store, tracer, framework, lambda *ids: proxy.as_resource(*ids).endpoint
        )
    return await spans_of(store, rollout_id)


async def with_tracer_alone(store, tracer, framework):
    """The spans of one rollout whose agent was given the address of the model's server."""
    if framework.speaks == "chat":
        with EchoLLM(reply_with_token_ids) as llm:
            rollout_id = await rollout_of(store, tracer, framework, lambda *ids: llm.url)
            return await spans_of(store, rollout_id)
    # The server of the other dialects. It is told of no rollout and so records nothing, and like
    # the providers' own servers it sends no token ids.
    own = InMemoryLightningStore()
    async with gateway_of(reply_with_token_ids, own, open=True) as proxy:
        url = proxy.as_resource().endpoint
        rollout_id = await rollout_of(store, tracer, framework, lambda *ids: url)
    return await spans_of(store, rollout_id)


async def rollout_of(store, tracer, framework, url_of):
    rollout = await store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with tracer.trace_context(store=store, **ids):
        answer = await framework.load()(url_of(*ids.values()))
        agl.emit_reward(0.5)
    assert ANSWER in answer
    return rollout.rollout_id


async def spans_of(store: InMemoryLightningStore, rollout_id: str) -> list[Span]:
    spans = list(await store.query_spans(rollout_id))
    assert agl.find_final_reward(spans) == 0.5
    return spans


def captured(spans: list[Span]) -> dict[str, Any]:
    """What the calls of these spans hold and what becomes of them, as the pages have it."""
    calls = model_calls(spans)
    rows = TraceToRows().adapt(spans)
    selected = TraceToRows(agent_match=f"^{AGENT}$").adapt(spans)
    return {
        "calls": len(calls),
        "messages": sum(_has_question(call) for call in calls),
        "tools": sum(bool(call.tools) for call in calls),
        "tool_call": any((call.response or {}).get("tool_calls") for call in calls),
        "tool_result": any(TOOL_RESULT in str(call.messages) for call in calls),
        "answer": any(ANSWER in str(call.response) for call in calls),
        "agent_name": sorted({call.agent_name for call in calls if call.agent_name}),
        "token_ids": sum(bool(c.prompt_token_ids and c.response_token_ids) for c in calls),
        "spans": len(spans),
        "rows": len(rows.rows),
        "calls_in_rows": sum(len(row.call_ids) for row in rows.rows),
        "calls_of_agent": sum(len(row.call_ids) for row in selected.rows),
        "rewards": sorted({row.reward for row in rows.rows if row.reward is not None}),
        "excluded": dict(Counter(each.reason for each in rows.ledger.exclusions)),
    }


def _has_question(call: ModelCall) -> bool:
    return any(QUESTION in str(message.get("content")) for message in call.messages)


@pytest.fixture
def framework(request):
    name: str = request.param
    framework = FRAMEWORKS[name]
    if missing := framework.missing():
        pytest.skip(f"{name} needs {missing}")
    return framework


every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, indirect=True, ids=str)


@every_framework
@pytest.mark.timeout(300)  # the first import of a framework, and npm's installation
async def test_by_the_gateway_each_call_is_in_a_row(framework, tracer, memory_store, captured_of):
    spans = await through_gateway(memory_store, tracer, framework)
    alone = captured([span for span in spans if is_gateway_span(span) or _is_reward(span)])
    total = alone["calls"]
    assert total == framework.calls
    assert (alone["token_ids"], alone["calls_in_rows"]) == (total, total)
    assert alone["messages"] == total
    assert alone["tool_call"]
    assert alone["tool_result"]
    assert alone["answer"]
    both = captured(spans)
    assert (both["calls"], both["token_ids"]) == (total, total), "a call was taken for two"
    assert both["calls_in_rows"] == total
    assert both["rewards"] == [0.5]
    if AGENT in both["agent_name"]:
        assert both["calls_of_agent"] == total
    captured_of(framework).update(gateway=alone, both=both)


@every_framework
@pytest.mark.timeout(300)
async def test_what_a_tracer_alone_captures(framework, tracer, memory_store, captured_of):
    spans = await with_tracer_alone(memory_store, tracer, framework)
    assert not any(map(is_gateway_span, spans))
    found = captured(spans)
    # What is written down may be little; it may not be wrong.
    assert found["calls"] <= framework.calls, "a call was taken for two"
    assert found["calls_in_rows"] == found["token_ids"]
    assert found["calls_in_rows"] + sum(found["excluded"].values()) >= found["calls"]
    assert found["rewards"] == ([0.5] if found["calls_in_rows"] else [])
    captured_of(framework).update(tracer=found)


def _is_reward(span: Span) -> bool:
    return agl.get_reward_value(span) is not None
