"""The OpenAI-compatible address in front of Tinker, asked with OpenAI's client."""

import pytest

from agl_http.server import ServerThread

openai = pytest.importorskip("openai")
pytest.importorskip("tinker")

# The SDK leaves a connection of each of its clients to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

MESSAGES = [{"role": "user", "content": "one two"}]


@pytest.fixture
async def client(service, tokenizer):
    from agl_tinker.bridge import Bridge
    from agl_tinker.service import TinkerService

    tinker = TinkerService(service.server.url, service.key, "test")
    sampler = await tinker.sampler("tiny/table", None)
    server = ServerThread(Bridge(sampler, tokenizer, 3, 16))
    server.start()
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0
    ) as client:
        yield client
    server.stop()
    await tinker.close("success")


async def test_answers_have_the_tokens_that_were_sampled(client, tokenizer):
    asked = {"max_tokens": 4, "logprobs": True, "extra_body": {"return_token_ids": True}}
    answer = await client.chat.completions.create(model="policy", messages=MESSAGES, n=3, **asked)
    words = ["<user>", "one", "two", "<end>", "<agent>"]
    assert answer.prompt_token_ids == tokenizer.convert_tokens_to_ids(words)
    assert answer.model_version == "3"
    assert len(answer.choices) == 3
    for choice in answer.choices:
        text = tokenizer.decode(choice.token_ids, skip_special_tokens=True)
        assert choice.message.content == text
        assert len(choice.logprobs.content) == len(choice.token_ids)
        assert all(one.logprob < 0 for one in choice.logprobs.content)
        ended = choice.token_ids[-1] == tokenizer.eos_token_id
        assert choice.finish_reason == ("stop" if ended else "length")
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == sum(len(c.token_ids) for c in answer.choices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool calls"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"max_tokens": 99}, "the model takes 16 tokens; the messages have 5"),
    ],
)
async def test_what_cannot_be_done_is_refused(client, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        await client.chat.completions.create(model="policy", messages=MESSAGES, **options)


async def test_a_refused_key_is_told_apart_from_a_fault(client, service):
    service.key = "tml-renewed"
    with pytest.raises(openai.AuthenticationError, match="expired or wrong"):
        await client.chat.completions.create(model="policy", messages=MESSAGES)
