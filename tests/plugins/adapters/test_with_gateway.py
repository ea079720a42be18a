"""An agent's conversation through the real proxy, to rows, messages and triplets."""

import pytest

from agl.semconv import AGL_ANNOTATION
from agl.store.memory import InMemoryLightningStore
from agl.types import Span
from agl_adapters import TracerTraceToTriplet, TraceToMessages, TraceToRows
from agl_testing.echo_llm import EchoLLM, logprob

openai = pytest.importorskip("openai")
agl_gateway = pytest.importorskip("agl_gateway")

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def look_then_answer(request: dict) -> dict | str:
    if request["messages"][-1]["role"] == "tool":
        return "nobody is here"
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def look(client: "openai.AsyncOpenAI", stream: bool) -> None:
    """Ask, run the tool, ask again with the answer appended."""
    messages = [{"role": "user", "content": "who is here ?"}]
    about = {"model": "echo", "messages": messages, "tools": TOOLS}
    answer = (await client.chat.completions.create(**about)).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": "an empty room"})
    last = await client.chat.completions.create(**about, stream=stream)
    if stream:
        async for _ in last:
            pass


async def recorded(store: InMemoryLightningStore, stream: bool) -> list[Span]:
    with EchoLLM(look_then_answer) as llm:
        entry = {"model_name": "echo", "litellm_params": {"model": "echo", "api_base": llm.url}}
        proxy = agl_gateway.LLMProxy(model_list=[entry], store=store)
        await proxy.start()
        rollout = await store.start_rollout(input="task")
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        about = {"api_key": "none", "default_headers": {"x-agl-agent": "looker"}}
        base_url = proxy.as_resource(*ids).endpoint
        async with openai.AsyncOpenAI(base_url=base_url, **about) as client:
            await look(client, stream)
        await proxy.stop()
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    of = {"rollout_id": ids[0], "attempt_id": ids[1]}
    await store.add_span(Span.from_attributes(name=AGL_ANNOTATION, attributes=reward, **of))
    return list(await store.query_spans(rollout.rollout_id))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_conversation_is_one_row_of_exact_tokens(memory_store, stream):
    spans = await recorded(memory_store, stream)
    result = TraceToRows(agent_match="looker").adapt(spans)
    (row,) = result.rows
    result.ledger.train(row)
    result.ledger.check()
    assert (len(row.call_ids), row.reward, row.agent_name) == (2, 1.0, "looker")
    sampled = [t for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m]
    assert sampled == [
        token for span in spans[:2] for token in span.attributes["response_token_ids"]
    ]
    assert [p for p, m in zip(row.logprobs, row.loss_mask, strict=True) if m] == [
        logprob(token) for token in sampled
    ]


async def test_the_same_spans_give_messages_and_triplets(memory_store: InMemoryLightningStore):
    spans = await recorded(memory_store, stream=False)
    first, second = TraceToMessages().adapt(spans)
    assert first["tools"] == TOOLS
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert second["messages"][-1]["content"] == "nobody is here"
    one, two = TracerTraceToTriplet(agent_match="looker").adapt(spans)
    assert (one.reward, two.reward) == (None, 1.0)
    assert two.prompt["token_ids"] == list(spans[1].attributes["prompt_token_ids"])
