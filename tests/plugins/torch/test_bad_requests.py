"""What one request or tokenizer does to the server, and to those who ask beside it."""

import asyncio

import pytest
import torch

from agl.errors import ConfigError
from agl_models.completions import RequestError
from agl_models.sampling.sequences import SamplingRequest
from agl_torch.batch import token_logprobs
from agl_torch.draws import sampling_distribution
from agl_torch.generate import Sampler
from agl_torch.server import InferenceServer

from .conftest import WORDS
from .test_learner import make_row
from .test_server import MESSAGES, post


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_by_both_numbers(model, tokenizer):
    model.resize_token_embeddings(len(WORDS) - 1)
    with pytest.raises(ConfigError, match=rf"has {len(WORDS)} tokens.*knows {len(WORDS) - 1}"):
        InferenceServer(model, tokenizer)


def test_a_prompt_that_the_model_cannot_read_is_refused_before_it_joins(model, tokenizer):
    sampler = Sampler(model, tokenizer)
    good = sampler.add(SamplingRequest([1, 4], max_tokens=2))
    with pytest.raises(RequestError, match=f"token {len(WORDS)}; the model has {len(WORDS)}"):
        sampler.add(SamplingRequest([1, len(WORDS)], max_tokens=2))
    while not good.is_over:
        sampler.step()
    assert good.completion.token_ids


def test_the_smallest_temperatures_take_the_most_probable_token():
    logits_B_V = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    temperature_B = torch.tensor([1e-40, 1e-38, 1e-6])
    logprobs_B_V, draw_B_V = sampling_distribution(logits_B_V, temperature_B, torch.ones(3))
    torch.testing.assert_close(logprobs_B_V, torch.log_softmax(logits_B_V, -1))
    assert draw_B_V.tolist() == [[0.0, 1.0, 0.0]] * 3


async def test_answers_are_made_while_rows_are_scored(model, tokenizer):
    """The output layer sees fewer states while rows are scored: not those of another thread."""
    row = make_row("a", 5)
    alone = token_logprobs(model, [row])
    within, answered = asyncio.Event(), asyncio.Event()
    loop, layer = asyncio.get_running_loop(), model.get_output_embeddings()
    hold = []

    def wait(module, arguments):
        if hold:  # of the scoring pass alone: the server is asked in the midst of it
            hold.clear()
            loop.call_soon_threadsafe(within.set)
            asyncio.run_coroutine_threadsafe(answered.wait(), loop).result(60)

    with InferenceServer(model, tokenizer, model_name="tiny") as server:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "seed": 1}
        _, before = await post(server, body)
        model.base_model.register_forward_pre_hook(wait)
        hold.append(True)
        scoring = asyncio.create_task(asyncio.to_thread(token_logprobs, model, [row]))
        await within.wait()
        assert layer._forward_pre_hooks
        status, meanwhile = await post(server, body)
        answered.set()
        scores = await scoring
    assert status == 200
    assert meanwhile["choices"][0]["message"] == before["choices"][0]["message"]
    torch.testing.assert_close(scores.hidden_N_H, alone.hidden_N_H)
