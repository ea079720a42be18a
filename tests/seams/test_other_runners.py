"""A runner that is not ours gives the key of the gateway to its agent, and asks it for nothing."""

import aiohttp
import pytest
from tests.models import entry

import agl

KEY = "a-key-of-this-test"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answered_call_with_the_gateways_key_is_stored(stream, echo_llm) -> None:
    """Whoever reads the spans once the agent is through finds them, as 0.3's algorithms do."""
    store = agl.InMemoryLightningStore()
    proxy = agl.LLMProxy(model_list=[entry("tiny", echo_llm.url)], store=store, api_key=KEY)
    await proxy.start()
    rollout = await store.start_rollout("task")
    address = proxy.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        for number in range(1, 4):
            async with session.post(f"{address}/chat/completions", json=body) as answer:
                text = await answer.content.readuntil(b"[DONE]") if stream else await answer.read()
                assert b"hello" in text
                assert len(await store.query_spans(rollout.rollout_id)) == number
    await proxy.stop()
