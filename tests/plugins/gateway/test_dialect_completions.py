"""``/v1/completions``, and every dialect by ``curl``."""

import asyncio
import json
import shutil

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


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, b"[DONE]"),
        ("completions", {"prompt": "hi"}, b"[DONE]"),
        (
            "messages",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
            b"message_stop",
        ),
        ("responses", {"input": "hi"}, b"response.completed"),
    ],
)
async def test_curl_gets_an_answer_and_a_stream(bench, path, body, event):
    whole = await curl(f"{bench.url}/{path}", {"model": "echo", **body})
    assert json.loads(whole)["model"] == "echo"
    assert b'"hi"' in whole
    stream = await curl(f"{bench.url}/{path}", {"model": "echo", "stream": True, **body})
    assert event in stream.strip().split(b"\n\n")[-1]
    first, second = await bench.spans()
    assert second.attributes[Key.RESPONSE_TOKEN_IDS] == first.attributes[Key.RESPONSE_TOKEN_IDS]


async def curl(url: str, body: dict) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "curl", "-sSN", "--fail-with-body", url, "-H", "content-type: application/json",
        "-d", json.dumps(body), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output
