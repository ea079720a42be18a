"""What a pretrained model is asked, and what our server makes of its answers."""

import json

import openai
import pytest
import torch

from ..conftest import TOOL_TEMPLATE  # noqa: TID252

CAPITAL = "What is the capital of France?"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


async def test_it_knows_the_capital_of_france_and_ends_there(ask, model, tokenizer):
    answer = await ask(CAPITAL, temperature=0, logprobs=True, extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    text = tokenizer.decode(prompt := answer.prompt_token_ids)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith(f"<|im_start|>user\n{CAPITAL}<|im_end|>\n<|im_start|>assistant\n")
    assert choice.token_ids[-1] == tokenizer.eos_token_id
    with torch.no_grad():
        logits = model(torch.tensor([prompt + choice.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(choice.token_ids)), choice.token_ids]
    got = [token.logprob for token in choice.logprobs.content]
    assert got == pytest.approx(expected.tolist(), abs=1e-3)


async def test_characters_of_several_tokens_are_streamed_whole(ask):
    said = '"日本語 😀"'
    form = {"name": "x", "schema": {"enum": [json.loads(said)]}}
    options = {"response_format": {"type": "json_schema", "json_schema": form}, "max_tokens": 40}
    whole = (await ask("Hi", **options)).choices[0].message.content
    parts = [
        chunk.choices[0].delta.content or ""
        async for chunk in await ask("Hi", **options, stream=True)
    ]
    assert (whole, "".join(parts)) == (said, said)
    assert len(parts) > 3


async def test_tools_are_called_where_the_template_shows_them(ask, tokenizer):
    tools = [{"type": "function", "function": {"name": "find", "parameters": CITY}}]
    options = {"tools": tools, "tool_choice": "required", "max_tokens": 60}
    with pytest.raises(openai.BadRequestError, match="chat template does not show calls"):
        await ask(CAPITAL, **options)
    tokenizer.chat_template = TOOL_TEMPLATE
    choice = (await ask(CAPITAL, **options)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert isinstance(json.loads(choice.message.tool_calls[0].function.arguments)["city"], str)
