"""The batched decoder against plain forward passes of the same model."""

import pytest
import torch

from agl.errors import ConfigError
from agl_torch.generate import Sampler, SamplingRequest, draw, sampling_distribution


def plain_greedy(model, prompt, max_tokens, end_token_id):
    ids = list(prompt)
    for _ in range(max_tokens):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == end_token_id:
            break
    return ids[len(prompt) :]


def plain_logprobs(model, prompt, answer, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)]


def test_greedy_batch_of_unequal_prompts_equals_one_by_one(model, tokenizer, prompts):
    requests = [SamplingRequest(p, max_tokens=12, temperature=0) for p in prompts]
    completions = Sampler(model, tokenizer).generate(requests)
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = plain_greedy(model, prompt, 12, tokenizer.eos_token_id)
        assert completion.token_ids == expected
        assert completion.logprobs == pytest.approx(
            plain_logprobs(model, prompt, expected, 1.0), abs=1e-4
        )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_a_plain_forward_pass(model, tokenizer, prompts, temperature):
    requests = [
        SamplingRequest(p, max_tokens=n, temperature=temperature, top_p=0.9, seed=n)
        for p, n in zip(prompts, (1, 9, 4), strict=True)
    ]
    for request, completion in zip(
        requests, Sampler(model, tokenizer).generate(requests), strict=True
    ):
        assert completion.logprobs == pytest.approx(
            plain_logprobs(model, request.prompt_token_ids, completion.token_ids, temperature),
            abs=1e-4,
        )


def test_generate_agrees_with_transformers_generate(model, tokenizer, prompts):
    for prompt in prompts:
        with torch.no_grad():
            theirs = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=10,
                do_sample=False,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        ours = Sampler(model, tokenizer).generate([SamplingRequest(prompt, 10, temperature=0)])
        assert ours[0].token_ids == theirs


def test_seed_gives_the_same_draw_whatever_the_neighbours(model, tokenizer, prompts):
    sampler = Sampler(model, tokenizer)
    request = SamplingRequest(prompts[0], max_tokens=10, seed=7)
    alone = sampler.generate([request])[0]
    others = [SamplingRequest(p, max_tokens=6) for p in prompts]
    assert sampler.generate([*others, request])[-1].token_ids == alone.token_ids
    different = sampler.generate([SamplingRequest(prompts[0], max_tokens=10, seed=8)])[0]
    assert different.token_ids != alone.token_ids


def test_in_batches_of_a_fixed_shape_a_completion_depends_on_its_request_alone(
    model, tokenizer, prompts
):
    requests = [
        SamplingRequest(prompts[n % 3], max_tokens=n % 5 + 3, seed=n, top_p=1 - n % 2 / 10)
        for n in range(11)
    ]
    sampler = Sampler(model, tokenizer, batch_rows=4)
    alone = [sampler.generate([request])[0] for request in requests]
    assert sampler.generate(requests) == alone
    assert sampler.generate(requests[::-1]) == alone[::-1]
    plain = Sampler(model, tokenizer)
    for request, completion in zip(requests, alone, strict=True):
        (expected,) = plain.generate([request])
        assert completion.token_ids == expected.token_ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_model_whose_answers_depend_on_their_neighbours_is_refused(model, tokenizer, monkeypatch):
    forward = model.forward

    def mixing(**inputs):
        output = forward(**inputs)
        output.logits += 1e-3 * output.logits.mean(0, keepdim=True)
        return output

    Sampler(model, tokenizer, batch_rows=4).check_batches(4)
    monkeypatch.setattr(model, "forward", mixing)
    Sampler(model, tokenizer, batch_rows=1).check_batches(1)
    with pytest.raises(ConfigError, match="Set max_batch_size to 1"):
        Sampler(model, tokenizer, batch_rows=4).check_batches(4)


def test_draws_follow_the_distribution():
    weights = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.float64).expand(4000, 4)
    generator = torch.Generator().manual_seed(0)
    drawn = draw(weights, torch.rand(4000, dtype=torch.float64, generator=generator))
    share = torch.bincount(drawn, minlength=4) / 4000
    assert share[1] == 0
    # Three standard deviations of the largest share: 3 * sqrt(0.6 * 0.4 / 4000) = 0.023.
    assert torch.allclose(share, torch.tensor([0.1, 0.0, 0.6, 0.3]), atol=0.024)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(2, 1)
    logprobs, weights = sampling_distribution(logits, torch.ones(2), torch.tensor([0.7, 1.0]))
    # 0.5 alone is below 0.7; with 0.3 it is above: two tokens stay.
    assert (weights[0] > 0).tolist() == [True, True, False, False]
    assert (weights[1] > 0).all()
    assert torch.allclose(logprobs[0].exp(), torch.tensor([0.5, 0.3, 0.15, 0.05]))


def test_answer_ends_at_the_end_token_and_says_so(model, tokenizer, prompts):
    completions = Sampler(model, tokenizer, seed=1).generate(
        [SamplingRequest(prompts[i % 3], max_tokens=40) for i in range(30)]
    )
    stopped = [c for c in completions if c.finish_reason == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.token_ids.index(tokenizer.eos_token_id) == len(completion.token_ids) - 1
        assert "<end>" not in completion.text
    for completion in completions:
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == 40


def test_stop_text_cuts_the_text_and_keeps_the_tokens(model, tokenizer, prompts):
    free = Sampler(model, tokenizer).generate([SamplingRequest(prompts[1], 12, temperature=0)])[0]
    words = free.text.split()
    assert len(words) > 2
    word = words[2]
    cut = Sampler(model, tokenizer).generate(
        [SamplingRequest(prompts[1], 12, temperature=0, stop=(word,))]
    )[0]
    assert cut.text.split() == words[: words.index(word)]
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", word)
