"""The server component on the real vLLM, behind the gateway: what is recorded is what was drawn."""

import asyncio
import json

import aiohttp
import anthropic
import openai
import pytest
import pytest_asyncio
import torch

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_models.processes.engines import EngineServer
from agl_models.versions import WHOLE_SOFTMAX
from agl_torch.server import InferenceServer

from .conftest import ARGUMENTS, Weights

LOOP = {"scope": "module", "loop_scope": "module"}
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
TOKEN_IDS = ["--middleware", "agl_gateway.vllm.ReturnTokenIds"]
QUESTION = "What is the capital of France?"
LOOK_UP = {
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def weights(smollm2):
    torch.manual_seed(0)
    return Weights(smollm2)


@pytest_asyncio.fixture(**LOOP)
async def vllm(weights, tmp_path_factory):
    """One server, as a start takes a minute or two."""
    folder = tmp_path_factory.mktemp("vllm")
    server = EngineServer(
        *("vllm", folder / "serving", folder / "vllm.log", weights.write),
        *([*ARGUMENTS, *TOOLS, *TOKEN_IDS], 600.0, {"seed": 0, "dtype": "float32"}),
        shares_gpu=False,
    )
    async with server.serving() as served:
        yield server, served.litellm_params


@pytest_asyncio.fixture(loop_scope="module")
async def attempt(vllm):
    """Clients of an attempt, before a gateway that forces on it what trainers force."""
    store = agl.InMemoryLightningStore()
    forced = {"train": {**WHOLE_SOFTMAX, "temperature": 0.7}}
    entry = {"model_name": "policy", "litellm_params": vllm[1], "forced_parameters": forced}
    proxy = agl.LLMProxy(store=store, model_list=[entry])
    await proxy.start()
    yield Attempt(proxy, store)
    await proxy.stop()
    await store.close()


class Attempt:
    def __init__(self, proxy, store):
        self.proxy, self.store = proxy, store

    async def begin(self, mode="test"):
        rollout = await self.store.start_rollout(input="task", mode=mode)
        self.rollout_id = rollout.rollout_id
        url = self.proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
        self.openai = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        url = url.removesuffix("/v1")
        self.anthropic = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)

    async def chat(self, content=QUESTION, **fields):
        asked = {"model": "policy", "max_tokens": 8, "seed": 1, **fields}
        messages = [{"role": "user", "content": content}]
        return await self.openai.chat.completions.create(messages=messages, **asked)

    async def recorded(self):
        await self.proxy.flush()
        return [span.attributes for span in await self.store.query_spans(self.rollout_id)]


def tokens(attributes):
    """Prompt, answer, log-probabilities."""
    keys = (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS)
    prompt, answer, logprobs = (list(attributes[key]) for key in keys)
    return prompt, answer, torch.tensor(logprobs, dtype=torch.double)


async def test_every_choice_is_of_the_whole_softmax_at_the_forced_temperature(attempt, weights):
    """Whatever the maker of the model left in ``generation_config.json``, streamed or not."""
    await attempt.begin("train")
    asked = {"n": 2, "max_tokens": 24, "temperature": 0.1}
    whole = await attempt.chat(**asked)
    streamed = ["", ""]
    async for chunk in await attempt.chat(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in whole.choices]
    for attributes in await attempt.recorded():
        prompt, *first = tokens(attributes)
        prefix = f"{Key.CHOICE.value}.1"
        second = [attributes[f"{prefix}.{name}"] for name in ("token_ids", "logprobs")]
        for text, (answer, logprobs) in zip(streamed, (first, second), strict=True):
            assert weights.tokenizer.decode(answer, skip_special_tokens=True) == text
            gap = weights.logprobs(prompt, answer, 0.7) - torch.as_tensor(logprobs)
            assert gap.abs().max() < 1e-3


async def test_every_dialect_records_what_was_read_and_sampled(attempt, weights):
    await attempt.begin()
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"model": "policy", "temperature": 0.0, "input": messages, "max_output_tokens": 16}
    texts = [(await attempt.chat(temperature=0.0, max_tokens=16)).choices[0].message.content]
    texts.append((await attempt.openai.responses.create(**asked)).output_text)
    events = [event async for event in await attempt.openai.responses.create(**asked, stream=True)]
    texts.append(events[-1].response.output_text)
    asked = {"model": "policy", "max_tokens": 16, "messages": messages}
    greedy = {"extra_body": {"temperature": 0.0}}
    texts.append((await attempt.anthropic.messages.create(**asked, **greedy)).content[0].text)
    async with attempt.anthropic.messages.stream(**asked, **greedy) as stream:
        texts.append(await stream.get_final_text())
    assert texts == ["The capital of France is Paris."] * 5
    recorded = await attempt.recorded()
    assert len(recorded) == 5
    expected = weights.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    for attributes in recorded:
        prompt, answer, logprobs = tokens(attributes)
        assert prompt == expected
        assert weights.tokenizer.decode(answer) == f"{texts[0]}<|im_end|>"
        assert (weights.logprobs(prompt, answer) - logprobs).abs().max() < 1e-3


async def test_our_own_server_says_the_same_of_the_same_weights(attempt, weights):
    with InferenceServer(weights.model, weights.tokenizer, model_name="own") as server:
        params = {"model": "hosted_vllm/own", "api_base": server.url}
        attempt.proxy.add_model({"model_name": "own", "litellm_params": params})
        await attempt.begin()
        asked = {"temperature": 0.0, "max_tokens": 24}
        both = [await attempt.chat("Tell me a story.", model=m, **asked) for m in ("policy", "own")]
    assert both[0].choices[0].message.content == both[1].choices[0].message.content
    (prompt, answer, logprobs), (*same, others) = map(tokens, await attempt.recorded())
    assert same == [prompt, answer]
    assert (logprobs - others).abs().max() < 1e-3


async def test_answer_held_to_a_form_has_the_log_probabilities_of_what_the_form_allows(
    attempt, weights
):
    """Not those of the whole softmax: vLLM applies the form before it computes them."""
    await attempt.begin("train")
    forms = ['"green"', '"blue"']
    schema = {"name": "colour", "schema": {"enum": [json.loads(form) for form in forms]}}
    form = {"type": "json_schema", "json_schema": schema}
    answer = await attempt.chat("Which colour is the sky?", response_format=form)
    assert answer.choices[0].message.content in forms
    prompt, ids, logprobs = tokens((await attempt.recorded())[0])
    vocabulary = [weights.tokenizer.decode([one]) for one in range(weights.model.vocab_size)]
    end, logits = weights.tokenizer.eos_token_id, weights.logits(prompt, ids).double() / 0.7
    said, ours = "", []
    for row, token in zip(logits, ids, strict=True):
        allowed = [
            number
            for number, text in enumerate(vocabulary)
            if text and any(form.startswith(said + text) for form in forms)
        ] or [end]
        ours.append(row[token] - row[allowed].logsumexp(0))
        said += vocabulary[token]
    assert (torch.stack(ours) - logprobs).abs().max() < 1e-3
    assert (weights.logprobs(prompt, ids, 0.7) - logprobs).min() < -1


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_tool_that_must_be_called_is_called_and_recorded(attempt, weights, dialect):
    await attempt.begin()
    asked = {"model": "policy", "extra_body": {"temperature": 0.0}}
    messages = [{"role": "user", "content": QUESTION}]
    if dialect == "chat":
        tools = [{"type": "function", "function": LOOK_UP}]
        await attempt.chat(tools=tools, tool_choice="required", max_tokens=96, **asked)
    elif dialect == "responses":
        asked |= {"tools": [{"type": "function", "strict": False, **LOOK_UP}], "input": messages}
        answer = await attempt.openai.responses.create(
            tool_choice="required", max_output_tokens=96, **asked
        )
        assert [part.name for part in answer.output if part.type == "function_call"] == ["look_up"]
    else:
        tool = {"name": "look_up", "input_schema": LOOK_UP["parameters"]}
        asked |= {"tools": [tool], "tool_choice": {"type": "any"}, "messages": messages}
        answer = await attempt.anthropic.messages.create(max_tokens=96, **asked)
        assert [part.name for part in answer.content if part.type == "tool_use"] == ["look_up"]
    (attributes,) = await attempt.recorded()
    (message,) = json.loads(attributes[Key.OUTPUT_MESSAGES])
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["look_up"]
    prompt, answer, logprobs = tokens(attributes)
    gap = weights.logprobs(prompt, answer) - logprobs
    # A form takes from others: what it leaves is likelier than in the whole softmax.
    assert gap.max() < 1e-3
    assert gap.min() < -1


async def test_server_answers_with_token_ids_that_nobody_asked_for(vllm):
    body = {"model": "policy", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 2}
    url = f"{vllm[1]['api_base']}/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        answer = await response.json()
    assert answer["prompt_token_ids"]
    assert len(answer["choices"][0]["token_ids"]) == 2


async def test_answers_after_an_update_are_of_the_new_weights(attempt, vllm, weights):
    """One under way is ended with the old ones."""
    await attempt.begin()
    # Longer than a block of the cache, so that the server knows the prompt from before.
    asked = {"content": "Count on: " + " ".join(map(str, range(200))), "temperature": 0.0}
    await attempt.chat(**asked)
    story = await attempt.chat("Tell me a story.", max_tokens=24, temperature=0.0, stream=True)
    await anext(story.__aiter__())
    before = Weights(weights.folder)

    def update():
        with vllm[0].updating():
            weights.change("_proj", 0.02)

    await asyncio.to_thread(update)
    assert [chunk async for chunk in story][-1].choices[0].finish_reason
    await attempt.chat(**asked)
    first, told, after = map(tokens, await attempt.recorded())
    for model, (prompt, answer, logprobs) in ((before, first), (before, told), (weights, after)):
        assert (model.logprobs(prompt, answer) - logprobs).abs().max() < 1e-3
    assert (before.logprobs(*after[:2]) - after[2]).abs().max() > 0.1
