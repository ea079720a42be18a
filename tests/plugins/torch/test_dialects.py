"""The clients of other dialects, through the gateway, to our own inference server."""

import openai
import pytest

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_torch.server import InferenceServer

anthropic = pytest.importorskip("anthropic")

MESSAGES = [{"role": "user", "content": "red and green"}]
PROMPT = [1, 4, 12, 5, 3, 2]  # <user> red and green <end> <agent>


@pytest.fixture
async def attempt(model, tokenizer):
    """The gateway, a started rollout, and its address there, before an inference server."""
    store = agl.InMemoryLightningStore()
    with InferenceServer(model, tokenizer, model_name="tiny", max_model_tokens=40) as server:
        params = {"model": "hosted_vllm/tiny", "api_base": server.url}
        proxy = agl.LLMProxy(
            store=store, model_list=[{"model_name": "tiny", "litellm_params": params}]
        )
        await proxy.start()
        rollout = await store.start_rollout(input="task")
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        yield proxy, rollout, proxy.as_resource(*ids).endpoint
        await proxy.stop()
    await store.close()


async def test_every_dialect_records_what_the_model_read_and_sampled(attempt, tokenizer) -> None:
    proxy, rollout, url = attempt
    asked = {"model": "tiny", "temperature": 0.0}
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chat = await client.chat.completions.create(**asked, messages=MESSAGES, max_tokens=8)
        response = await client.responses.create(**asked, input=MESSAGES, max_output_tokens=8)
        stream = await client.responses.create(
            **asked, input=MESSAGES, max_output_tokens=8, stream=True
        )
        last = [event async for event in stream][-1]
    base_url = url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client:
        asked = {"model": "tiny", "max_tokens": 8, "messages": MESSAGES}
        greedy = {"extra_body": {"temperature": 0.0}}
        message = await client.messages.create(**asked, **greedy)
        async with client.messages.stream(**asked, **greedy) as events:
            text = await events.get_final_text()
    answers = [response.output_text, last.response.output_text, message.content[0].text, text]
    assert answers == [chat.choices[0].message.content] * 4
    await proxy.flush()
    spans = list(await proxy.get_store().query_spans(rollout.rollout_id))
    assert len(spans) == 5
    for span in spans:
        assert span.attributes[Key.PROMPT_TOKEN_IDS] == PROMPT
        ids = span.attributes[Key.RESPONSE_TOKEN_IDS]
        assert tokenizer.decode(ids, skip_special_tokens=True) == answers[0]
        assert len(span.attributes[Key.RESPONSE_LOGPROBS]) == len(ids)
