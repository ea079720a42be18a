"""``/v1/completions``, and every dialect by ``curl``."""

import json

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl_testing.echo_llm import EchoLLM, logprob

openai = pytest.importorskip("openai")


def ask(prompt: object = "hello big world", **fields: object) -> dict:
    return {"model": "echo", "prompt": prompt, **fields}


REQUESTS = [
    ask(),
    ask(logprobs=1),
    ask(return_token_ids=True),
    ask([5, 6, 7]),
    ask(n=2),
    ask(stream=True),
    ask(stream=True, logprobs=1, stream_options={"include_usage": True}),
    ask(stream=True, return_token_ids=True),
]


async def test_completions_have_the_bytes_that_the_backend_would_have_sent(bench):
    with EchoLLM() as direct:
        for request in REQUESTS:
            expected = await bench.post(request, direct.url, "completions")
            assert await bench.post(request, path="completions") == expected
            assert expected[0] == 200
    assert len(await bench.spans()) == len(REQUESTS)


async def test_a_completion_is_recorded_with_the_ids_that_the_agent_does_not_see(bench):
    async with openai.AsyncOpenAI(base_url=bench.url, api_key="none") as client:
        completion = await client.completions.create(**ask())
        stream = await client.completions.create(**ask(), stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
    assert completion.choices[0].text == "".join(pieces) == "hello big world"
    assert completion.choices[0].logprobs is None
    assert not hasattr(completion.choices[0], "token_ids")
    for span in await bench.spans():
        attributes = span.attributes
        words = bench.llm.vocabulary.decode
        token_ids = attributes[Key.RESPONSE_TOKEN_IDS]
        assert words(attributes[Key.PROMPT_TOKEN_IDS]) == ["hello", "big", "world"]
        assert words(token_ids) == ["hello", "big", "world", "<|end|>"]
        assert attributes[Key.RESPONSE_LOGPROBS] == [logprob(token_id) for token_id in token_ids]
        assert attributes[Key.OPERATION] == "text_completion"
        (message,) = json.loads(attributes[Key.INPUT_MESSAGES])
        assert message == {"role": "user", "content": "hello big world"}
        (answer,) = json.loads(attributes[Key.OUTPUT_MESSAGES])
        assert answer["content"] == "hello big world"
