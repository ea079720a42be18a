"""The batched decoder against plain forward passes of the same model."""

import asyncio
import random

import pytest
import torch
import transformers

from agl.errors import ConfigError
from agl_models.sampling.sequences import Completion, SamplingRequest
from agl_models.sampling.text_stream import TextStream
from agl_torch.draws import CHANCES, draw, sampling_distribution
from agl_torch.generate import Sampler

from .conftest import SIZES


def plain_logprobs(model, prompt, answer, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    return [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)]


@pytest.mark.parametrize("temperature", [0, 0.5, 1.0, 1.7])
def test_logprobs_are_those_of_a_plain_forward_pass(model, tokenizer, prompts, temperature):
    requests = [
        SamplingRequest(p, max_tokens=n, temperature=temperature, top_p=0.9, seed=n)
        for p, n in zip(prompts, (1, 9, 4), strict=True)
    ]
    made = Sampler(model, tokenizer).generate(requests)
    for request, completion in zip(requests, made, strict=True):
        given = (model, request.prompt_token_ids, completion.token_ids, temperature)
        assert completion.logprobs == pytest.approx(plain_logprobs(*given), abs=1e-4)


def test_sequences_join_and_leave_between_two_steps(model, tokenizer, prompts):
    sampler = Sampler(model, tokenizer)
    long = sampler.add(SamplingRequest(prompts[0], max_tokens=30, seed=5))
    assert sampler.step() == sampler.step() == []
    short = sampler.add(SamplingRequest(prompts[1], max_tokens=1, seed=1))
    kept_out = sampler.add(SamplingRequest(prompts[2], max_tokens=1, seed=2))
    assert sampler.step(may_join=False) == []
    assert set(sampler.step()) == {short, kept_out}
    assert not long.is_over
    sampler.drop(long)
    assert sampler.step() == [long]
    assert sampler.is_idle


@pytest.mark.parametrize("keep_bytes", [0, 20_000, 2**30])
def test_same_seeds_give_the_same_tokens_whenever_they_come(model, tokenizer, keep_bytes):
    chance = random.Random(3)
    beginning = [chance.randrange(4, 15) for _ in range(20)]
    requests = [
        SamplingRequest(
            beginning[: chance.randrange(21)] + [chance.randrange(4, 15)] * chance.randint(1, 9),
            max_tokens=chance.randint(1, 30),
            seed=seed,
            top_p=chance.choice([1.0, 0.9]),
        )
        for seed in range(60)
    ]
    alone = [Sampler(model, tokenizer).generate([request])[0] for request in requests]
    sampler = Sampler(model, tokenizer, max_rows=8, keep_bytes=keep_bytes)
    for _ in range(2):
        order = chance.sample(range(60), 60)
        added = {}
        while len(added) < 60 or not sampler.is_idle:
            for number in order[len(added) :][: chance.randrange(4)]:
                added[number] = sampler.add(requests[number])
            sampler.step()
        for number, running in added.items():
            expected = alone[number]
            assert running.completion.token_ids == expected.token_ids
            assert running.completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_one_prompt_of_many_is_read_once(model, tokenizer, passes):
    prompt = [1, *[4, 5, 6, 7] * 8, 3, 2]
    many = [SamplingRequest(prompt, max_tokens=4, seed=seed) for seed in range(8)]
    alone = [Sampler(model, tokenizer).generate([one])[0].token_ids for one in many]
    passes.clear()
    made = Sampler(model, tokenizer, keep_bytes=2**20).generate(many)
    assert [one.token_ids for one in made] == alone
    assert [shape for shape in passes if shape[1] > 1] == [(1, len(prompt))]


def test_what_is_kept_of_ended_sequences_stays_within_its_memory(model, tokenizer, passes):
    # Keys and values of a token: 2 layers x 2 heads x 8 dimensions x 4 bytes, twice.
    per_token = 2 * 2 * 8 * 4 * 2
    sampler = Sampler(model, tokenizer, keep_bytes=3 * 64 * per_token)
    long = [[1, *[word] * 20, 3, 2] for word in range(4, 8)]

    def num_read(prompt):
        passes.clear()
        sampler.generate([SamplingRequest(prompt, max_tokens=2, temperature=0)])
        return max(columns for _, columns in passes)

    # Beside the first token they have nothing in common.
    assert [num_read(prompt) for prompt in long] == [23, 22, 22, 22]
    assert [num_read(prompt) for prompt in long[1:]] == [1, 1, 1]
    assert num_read(long[0]) == 22


SMALL = {**SIZES, "num_hidden_layers": 4, "head_dim": 8}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(**SMALL),
        transformers.Qwen3Config(**SMALL),
        transformers.MistralConfig(**SMALL, sliding_window=5),
        transformers.Gemma2Config(**SMALL, sliding_window=5),
        transformers.Gemma3TextConfig(**SMALL, sliding_window=5, sliding_window_pattern=2),
        transformers.GPT2Config(
            vocab_size=15, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=3
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_other_kinds_of_models_say_what_transformers_do(tokenizer, prompts, config, attention):
    if config.model_type == "gemma2" and attention == "sdpa":
        pytest.skip("its softcap needs eager attention")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model.eval()
    sampler = Sampler(model, tokenizer, keep_bytes=2**20)
    requests = [SamplingRequest(p, max_tokens=12, temperature=0) for p in prompts]
    first = sampler.generate(requests)
    again = [SamplingRequest([*p, 4, 5, 6], max_tokens=12, temperature=0) for p in prompts]
    for request, made in zip([*requests, *again], first + sampler.generate(again), strict=True):
        prompt = torch.tensor([request.prompt_token_ids])
        plain = {"attention_mask": torch.ones_like(prompt), "do_sample": False}
        theirs = model.generate(prompt, max_new_tokens=12, **plain)
        assert made.token_ids == theirs[0, prompt.shape[1] :].tolist()


def test_a_model_whose_state_is_not_keys_and_values_is_refused(tokenizer):
    kinds = ["linear_attention", "full_attention"] * 2
    config = transformers.Qwen3NextConfig(**SMALL, num_experts=2, layer_types=kinds)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match="linear_attention"):
        Sampler(model, tokenizer)


def test_in_batches_of_one_shape_completions_depend_on_requests_alone(model, tokenizer, prompts):
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
    chances = torch.empty(4000, 4, dtype=torch.float64).uniform_(*CHANCES, generator=generator)
    chances[:4] = torch.eye(4) * (CHANCES[1] - CHANCES[0]) + CHANCES[0]  # the ends
    drawn = draw(weights, chances)
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
    requests = [SamplingRequest(prompts[i % 3], max_tokens=40) for i in range(30)]
    completions = Sampler(model, tokenizer, seed=1).generate(requests)
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
    stopping = SamplingRequest(prompts[1], 12, temperature=0, stop=(word,))
    (cut,) = Sampler(model, tokenizer).generate([stopping])
    assert cut.text.split() == words[: words.index(word)]
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", word)


class Counting:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self._tokenizer, self.decoded = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def decode(self, token_ids, **options):
        self.decoded += len(token_ids)
        return self._tokenizer.decode(token_ids, **options)


SAID = "Grüße, 你好: a cat 🐱 sat, and said: 'no'.  " * 20


def append(sampler, token_ids, stop):
    """What becomes of an answer with these tokens."""
    request, completion = SamplingRequest([1], len(token_ids), stop=stop), Completion()
    for number, token in enumerate(token_ids, 1):
        if not sampler._append(request, completion, token, 0.0):
            return completion, number
    raise AssertionError


@pytest.mark.parametrize("stop", [("nowhere",), ("cat 🐱 sat", "nowhere"), ("好",), ("'no'.  G",)])
def test_stop_texts_end_an_answer_at_the_token_that_completes_one(model, byte_tokenizer, stop):
    token_ids = byte_tokenizer.encode(SAID)
    counting = Counting(byte_tokenizer)
    completion, taken = append(Sampler(model, counting), token_ids, stop)
    expected = next(
        (n for n in range(len(token_ids)) if stop[0] in byte_tokenizer.decode(token_ids[:n])),
        len(token_ids),
    )
    assert taken == expected
    assert completion.text == SAID.partition(stop[0])[0]
    assert counting.decoded < 100 * len(token_ids)  # each time all of it: 500


async def test_text_is_streamed_as_it_becomes_certain_and_decoded_once(byte_tokenizer):
    token_ids, counting = byte_tokenizer.encode(SAID), Counting(byte_tokenizer)
    stream = TextStream(counting.decode, [SamplingRequest([1], 9, stop=("nowhere",))])
    for token in token_ids:
        stream.requests[0].on_token(token, 0.0)
    done = asyncio.create_task(asyncio.sleep(0))
    texts = [text async for _, _, _, text in stream.tokens([done])]
    assert len(texts) == len(token_ids)
    assert "".join(texts) + stream.rest(0, SAID) == SAID
    assert stream.rest(0, SAID) == ""
    assert counting.decoded < 20 * len(token_ids)


@pytest.mark.parametrize(
    ("said", "stop", "sent"),
    [
        ("xa", ("b", "ab"), "x"),
        ("xab", ("b", "ab"), "x"),
        ("<call>x</call> Ob", ("Ob", "<call>"), ""),
    ],
)
async def test_what_may_be_cut_is_held_back_whichever_stop_text_comes_first(
    said, stop, sent, byte_tokenizer
):
    stream = TextStream(byte_tokenizer.decode, [SamplingRequest([1], 9, stop=stop)])
    for token in byte_tokenizer.encode(said):
        stream.requests[0].on_token(token, 0.0)
    done = asyncio.create_task(asyncio.sleep(0))
    assert "".join([text async for *_, text in stream.tokens([done])]) == sent
