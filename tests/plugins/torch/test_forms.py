"""Calls of tools, and answers that are held to a form."""

import asyncio
import json

import openai
import pytest

from agl_models.sampling.forms import split_calls
from agl_torch.server import InferenceServer

pytest.importorskip("llguidance")

MESSAGES = [{"role": "user", "content": "weather?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop_it"}},
]


OF_X = {"properties": {"x": {"multipleOf": 12347}}}
LARGE = {"type": "function", "function": {"name": "f", "parameters": OF_X}}


def of_schema(given):
    return {"response_format": {"type": "json_schema", "json_schema": given}}


def held_to(schema):
    return of_schema({"name": "x", "schema": schema})


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def byte_server(byte_tokenizer):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 2048, "vocab_size": 260}
    ends = {"bos_token_id": None, "eos_token_id": byte_tokenizer.eos_token_id}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **ends))
    with InferenceServer(model, byte_tokenizer) as server:
        yield server


@pytest.fixture
async def ask(byte_server):
    async with openai.AsyncOpenAI(base_url=byte_server.url, api_key="-", max_retries=0) as client:

        async def ask(**options):
            return await client.chat.completions.create(
                model="model", messages=MESSAGES, **{"max_tokens": 400, **options}
            )

        yield ask


async def test_an_answer_keeps_to_a_schema_whatever_the_model_likes(ask):
    answer = await ask(**held_to(SCHEMA), n=4, seed=1, logprobs=True)
    found = [json.loads(choice.message.content) for choice in answer.choices]
    assert all(one["city"] in ("Oslo", "Rome") and one["days"] in (1, 2) for one in found)
    assert len({str(one) for one in found}) > 1
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    # A token that the form forces was drawn with probability 1, and one of two with about a half.
    logprobs = [token.logprob for token in answer.choices[0].logprobs.content]
    assert logprobs.count(0) > 10
    assert -3 < min(logprobs) < -0.1


@pytest.mark.parametrize("choice", ["required", named("weather")])
async def test_a_tool_is_called_where_one_must_be(ask, choice):
    options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "seed": 5}
    answer = (await ask(**options)).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert arguments["city"] in ("Oslo", "Rome")
    else:
        assert choice == "required"
    text, streamed = "", []
    async for chunk in await ask(**options, stream=True):
        for part in chunk.choices:  # AgentOps, in this process for other tests, asks for usage, too
            text += part.delta.content or ""
            streamed += part.delta.tool_calls or []
    assert text == ""
    assert [one.function.arguments for one in streamed] == [call.function.arguments]
    assert [one.id for one in streamed] == [call.id]


async def test_without_a_choice_the_model_says_what_it_likes(ask):
    for choice in ("auto", "none"):
        answer = await ask(tools=TOOLS, tool_choice=choice, max_tokens=5)
        assert answer.choices[0].message.tool_calls is None


def test_calls_are_taken_out_of_the_text_and_what_is_none_stays():
    call = '<tool_call>\n{"name": "f", "arguments": {"x": {"y": 1}}}\n</tool_call>'
    text, calls = split_calls(f"So: {call}\n{call} done", [1, 2], 0)
    assert text == "So:done"
    assert [one["function"] for one in calls] == [{"name": "f", "arguments": '{"x": {"y": 1}}'}] * 2
    assert len({one["id"] for one in calls}) == 2
    assert split_calls(f"{call}", [1, 2], 0)[1][0]["id"] == calls[0]["id"]
    for broken in ("<tool_call>{no}</tool_call>", "<tool_call>[1]</tool_call>", call[:-3]):
        assert split_calls(broken, [1], 0) == (broken, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "required"}, "'required' needs 'tools'"),
        ({"tools": TOOLS, "tool_choice": named("nix")}, "no tool 'nix'"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "'response_format'"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "'parallel_tool_calls'"),
        ({"tools": [{"type": "custom"}]}, "expected objects as"),
        ({"response_format": {"type": "xml"}}, "got 'xml'"),
        *((of_schema(given), "expected an object") for given in ({}, "x", [1])),
        (held_to({"type": "nonsense"}), "response_format"),
        ({"tools": TOOLS, "tool_choice": {"function": "x"}}, "no tool None"),
        (held_to({"type": "integer", "multipleOf": 9999991}), "multipleOf.*9999991.*up to 10000"),
        (held_to({"allOf": [{"multipleOf": n} for n in (9973, 0.9967)]}), "least common multiple"),
        ({"tools": [LARGE], "tool_choice": "required"}, "'tools': the least common multiple"),
    ],
)
async def test_a_form_that_cannot_be_had_is_refused_by_name(ask, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        await ask(**options)


async def test_multiples_that_are_few_are_kept_to(ask):
    form = held_to({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99})
    answer = await ask(**form, seed=2)
    assert int(answer.choices[0].message.content) % 7 == 0


async def test_a_form_that_takes_too_much_fails_its_own_request_alone(ask):
    form = held_to({"type": "integer", "multipleOf": 9973, "minimum": 1, "maximum": 10**8})
    held, beside = await asyncio.gather(
        ask(**form, seed=2), ask(max_tokens=30), return_exceptions=True
    )
    assert isinstance(held, openai.BadRequestError)
    assert "'response_format': the answer cannot be held to this form: lexer" in str(held)
    assert beside.choices[0].finish_reason in ("stop", "length")


async def test_a_tokenizer_of_which_no_form_can_be_had_is_named(model, tokenizer):
    with InferenceServer(model, tokenizer) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="-", max_retries=0) as client:
            create = client.chat.completions.create
            asked = {"model": "model", "messages": [{"role": "user", "content": "one"}]}
            with pytest.raises(openai.BadRequestError, match="cannot read the tokenizer"):
                await create(**asked, response_format={"type": "json_object"})
            with pytest.raises(openai.BadRequestError, match="chat template does not show calls"):
                await create(**asked, tools=TOOLS)
