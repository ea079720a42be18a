"""Each framework through the gateway: what its spans, the tracer's and both together hold."""

import shutil
from importlib import metadata
from typing import Any

import pytest
from frameworks import AGENT, ANSWER, FRAMEWORKS, QUESTION, TOOL_RESULT, reply

import agl
import agl_gateway
from agl.store.memory import InMemoryLightningStore
from agl.testing.echo_llm import EchoLLM
from agl.types import ModelCall, Span
from agl_adapters import TraceToRows
from agl_adapters.calls import model_calls
from agl_adapters.sources.gateway import is_gateway_span


async def traced(
    store: InMemoryLightningStore, tracer: agl.Tracer, agent: Any
) -> tuple[str, list[Span]]:
    with EchoLLM(reply) as llm:
        entry = {"model_name": "echo", "litellm_params": {"model": "echo", "api_base": llm.url}}
        proxy = agl_gateway.LLMProxy(model_list=[entry], store=store)
        await proxy.start()
        rollout = await store.start_rollout(input="task")
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        try:
            async with tracer.trace_context(store=store, **ids):
                answer = await agent(proxy.as_resource(*ids.values()).endpoint)
                agl.emit_reward(0.5)
        finally:
            await proxy.stop()
    return answer, list(await store.query_spans(rollout.rollout_id))


def captured(spans: list[Span]) -> dict[str, Any]:
    """What the calls of these spans hold, as the table of the docs has it."""
    calls = model_calls(spans)
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
    }


def _has_question(call: ModelCall) -> bool:
    return any(QUESTION in str(message.get("content")) for message in call.messages)


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_what_is_captured(
    name: str,
    tracer: agl.Tracer,
    memory_store: InMemoryLightningStore,
    all_captured: dict[str, Any],
) -> None:
    distribution, module, agent = FRAMEWORKS[name]
    pytest.importorskip(module)
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    answer, spans = await traced(memory_store, tracer, agent)
    assert ANSWER in answer
    assert agl.find_final_reward(spans) == 0.5

    gateways = [span for span in spans if is_gateway_span(span)]
    rest = [span for span in spans if not is_gateway_span(span)]
    alone = captured(gateways)
    assert (alone["calls"], alone["messages"], alone["token_ids"]) == (2, 2, 2)
    assert alone["tool_call"]
    assert alone["tool_result"]
    assert alone["answer"]
    both = captured(spans)
    assert (both["calls"], both["token_ids"]) == (2, 2), "a call was taken for two"

    rows = TraceToRows().adapt(spans)
    assert sum(len(row.call_ids) for row in rows.rows) == 2
    assert {row.reward for row in rows.rows} == {0.5}
    if both["agent_name"]:
        assert len(TraceToRows(agent_match=AGENT).adapt(spans).rows) == len(rows.rows)

    all_captured[name] = {
        "distribution": distribution,
        "version": metadata.version(distribution) if distribution else "",
        "gateway": alone,
        "tracer": captured(rest),
        "both": both,
        "rows": len(rows.rows),
    }
