"""The mathematics of GRPO, computed by hand."""

import math

import pytest
import torch
import transformers
from tests.training_rows import training_row

import agl_torch
from agl.errors import AlgorithmError
from agl_learning.advantages.group_advantages import group_advantages
from agl_torch.batch import microbatches, token_logprobs
from agl_torch.loss import Gain, Tokens, check_gain, clipped, policy_loss, row_weights


def row(rollout_id, token_ids, loss_mask):
    return training_row(token_ids, [(loss_mask.index(1), len(token_ids))], rollout_id=rollout_id)


@pytest.mark.parametrize("group", [[], [[1.0], []]])
def test_empty_groups_and_rollouts_are_refused(group):
    with pytest.raises(ValueError, match="needs rollouts"):
        group_advantages(group)


TWO = (["a", "a", "b"], [1, 2, 1])
"""Two rollouts: "a" has 3 tokens in two rows, "b" has 1."""
MORE, LEFT_OUT = (["a", "b"], [3, 1]), {"left_out": {"b": 2, "c": 1}}
"""Two more tokens of "b", and a rollout "c" of one: 3 tokens of each of "a" and "b", 7 in all."""


@pytest.mark.parametrize(
    ("rows", "mean", "options", "tokens", "shares"),
    [
        # Each rollout weighs 1/2 in all.
        (TWO, "grpo", {}, [1 / 6, 1 / 6, 1 / 2], [1 / 6, 2 / 6, 1 / 2]),
        # By tokens, of which there are 4; and with 10 in the place of a rollout's own number.
        (TWO, "dapo", {}, [1 / 4] * 3, [1 / 4, 2 / 4, 1 / 4]),
        (TWO, "dr_grpo", {"constant": 10}, [1 / 20] * 3, [1 / 6, 2 / 6, 1 / 2]),
        # What a minibatch has of the step goes by what is trained.
        (MORE, "grpo", LEFT_OUT, [1 / 9] * 2, [3 / 4, 1 / 4]),
        (MORE, "dapo", LEFT_OUT, [1 / 7] * 2, [3 / 4, 1 / 4]),
        (MORE, "dr_grpo", {**LEFT_OUT, "constant": 10}, [1 / 30] * 2, [3 / 4, 1 / 4]),
    ],
)
def test_weights_give_each_rollout_the_same_share(rows, mean, options, tokens, shares):
    weights = row_weights(*rows, mean, **options)
    assert [one.token for one in weights] == pytest.approx(tokens)
    assert [one.step_share for one in weights] == pytest.approx(shares)


@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_a_divergence_that_overflows_counts_as_one_of_20_nats(coefficient):
    new = torch.tensor([-120.0, -1.0], requires_grad=True)
    nothing = Gain(torch.zeros(2), torch.zeros(2))
    loss = policy_loss(
        nothing,
        new,
        torch.tensor([0.5, 0.5]),
        reference_logprobs_N=torch.tensor([-1.0, -2.0]),
        kl_coefficient=coefficient,
    )
    # (exp(20) - 20 - 1 + exp(-1) + 1 - 1) / 2; exp(119) is more than a float32 holds.
    assert float(loss.kl) == pytest.approx((math.exp(20) - 21 + math.exp(-1)) / 2)
    assert loss.total.item() == pytest.approx(coefficient * float(loss.kl))
    loss.total.backward()
    # Of the second, half of what the divergence itself has: the distance, 1 nat.
    assert new.grad.tolist() == pytest.approx([0.0, coefficient * 0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "attention", "size"),
    [("Llama", "sdpa", 20), ("Llama", "eager", 20), ("Qwen3", "sdpa", 20), ("Gemma2", "eager", 36)],
)
def test_scores_do_not_depend_on_what_lies_beside(kind, attention, size):
    """Rows that begin alike are read once, but by layers that see a window alone."""
    model, sizes = small(kind), []
    model.set_attn_implementation(attention)
    look = lambda layer, given: sizes.append(given[0].numel())  # noqa: E731
    model.get_input_embeddings().register_forward_pre_hook(look)
    rows = [
        row("a", [1, 4, 3, 2, 5, 3], [0, 0, 0, 0, 1, 1]),
        row("b", [1, 6, 2, 7, 3, 1, 8, 2, 9], [0, 0, 0, 1, 0, 0, 0, 0, 1]),
        row("c", [1, 4, 3, 2, 5, 9], [0, 0, 0, 0, 1, 1]),
        row("d", [1, 4, 3, 2, 7, 9], [0, 0, 0, 0, 1, 1]),
    ]
    together = token_logprobs(model, rows, temperature=0.7)
    assert sizes == [size]  # 4 + 2 + 2 + 2 and 9, and a padded one
    alone = [token_logprobs(model, [one], temperature=0.7) for one in rows]
    for name in ("logprobs_N", "entropy_N", "hidden_N_H"):
        expected = torch.cat([getattr(scores, name) for scores in alone])
        assert torch.allclose(getattr(together, name), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "Gemma2", "Cohere", "Granite", "HyperCLOVAX"])
def test_scores_are_the_models_distribution_at_the_token_before(kind):
    model, token_ids = small(kind), [1, 4, 3, 2, 5, 3]
    scores = token_logprobs(model, [row("a", token_ids, [0, 0, 0, 0, 1, 1])])
    logprobs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0], -1)
    assert torch.allclose(scores.logprobs_N, torch.stack([logprobs[3, 5], logprobs[4, 3]]))
    entropy = -(logprobs[3:5].exp() * logprobs[3:5]).sum(-1)
    assert torch.allclose(scores.entropy_N, entropy)


def small(kind):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    more = {"num_key_value_heads": 2, "vocab_size": 15, "intermediate_size": 8, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if hasattr(config, name):
            setattr(config, name, 0.1)  # far from what leaves logits as they are
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def test_loss_in_chunks_has_the_gradient_of_the_whole(model, monkeypatch):
    rows = [row(f"r{i}", [1, 4 + i, 3, 2, 5 + i], [0, 0, 0, 0, 1]) for i in range(4)]
    rows.append(row("r3", [1, 9, 2, 4, 5, 6, 7], [0, 0, 0, 1, 1, 1, 1]))
    counts = [sum(one.loss_mask) for one in rows]
    of_rows = [one.token for one in row_weights([one.rollout_id for one in rows], counts)]
    weights = dict(zip(map(id, rows), of_rows, strict=True))

    def gradient(max_tokens):
        model.zero_grad()
        for chunk in microbatches(rows, model, max_tokens):
            scores = token_logprobs(model, chunk)
            per_token = [weights[id(one)] for one in chunk for _ in range(sum(one.loss_mask))]
            old = scores.logprobs_N.detach() - 0.1
            gain = clipped(scores.logprobs_N - old, torch.ones_like(old))
            policy_loss(gain, scores.logprobs_N, torch.tensor(per_token)).total.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    whole = gradient(None)
    monkeypatch.setattr("agl_torch.batch.AUTO_ON_CPU", 12)
    long = [row(f"l{i}", [*range(1, 9), 2 + i, 3], [0] * 8 + [1, 1]) for i in range(3)]
    assert [len(chunk) for chunk in microbatches(rows, model, "auto")] == [1, 2, 2]
    assert [len(chunk) for chunk in microbatches(long, model, "auto")] == [3]
    monkeypatch.setattr("agl_torch.batch.LOGITS_TOKENS", 3)
    assert torch.allclose(whole, gradient("auto"), atol=1e-6)


def test_a_ratio_that_overflows_gives_no_gradient_that_is_none():
    new = torch.tensor([-0.1, -0.1], requires_grad=True)
    old, advantages = torch.tensor([-500.0, -500.0]), torch.tensor([-1.0, 1.0])
    loss = policy_loss(clipped(new - old, advantages), new, torch.tensor([0.5, 0.5]))
    # -(0.5 * -3 + 0.5 * 1.28)
    assert loss.total.item() == pytest.approx(0.86)
    loss.total.backward()
    assert new.grad.tolist() == [1.5, 0]


def test_logits_are_made_for_sampled_tokens_only(model):
    seen = []
    model.lm_head.register_forward_hook(lambda layer, given, made: seen.append(tuple(made.shape)))
    rows = [row("a", [1, 4, 3, 2, 5, 3], [0, 0, 0, 0, 1, 1]), row("b", [1, 6, 2, 7], [0, 0, 0, 1])]
    token_logprobs(model, rows)
    assert seen == [(1, 1, 15), (1, 15), (1, 3, 15)]
    model(torch.tensor([[1, 2]]))
    assert seen[-1] == (1, 2, 15)  # others get all of theirs


def test_an_entropy_that_nobody_rewards_has_no_graph(model):
    rows = [row("a", [1, 4, 3, 2, 5, 3], [0, 0, 0, 0, 1, 1])]
    with_graph, without = (token_logprobs(model, rows, entropy_gradient=k) for k in (True, False))
    assert with_graph.entropy_N.requires_grad
    assert not without.entropy_N.requires_grad
    assert torch.equal(with_graph.entropy_N, without.entropy_N)
    assert without.logprobs_N.requires_grad


def test_scores_over_a_large_vocabulary_err_in_no_direction(model):
    model.resize_token_embeddings(150_000, mean_resizing=False)
    model.lm_head.weight.data.mul_(2)  # so that some tokens are likely
    ids = list(range(64))
    scores = token_logprobs(model, [row("a", ids, [0] + [1] * 63)])
    exact = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    error_N = scores.logprobs_N - exact.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert error_N.mean().abs() < 5e-7


def test_ids_beyond_the_vocabulary_are_named_before_they_reach_the_model(model):
    with pytest.raises(ValueError, match=r"rollout 'a'.*from 1 to 15.*vocabulary has 15"):
        token_logprobs(model, [row("a", [1, 4, 15], [0, 0, 1])])


@pytest.mark.parametrize("name", ["GSPO", "RLOO"])
def test_calls_of_a_row_share_its_ratio_and_keep_their_advantages(name):
    algorithm = getattr(agl_torch, name)(model="none", clip={"high": 9.0, "low": 0.9})
    new = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    old = torch.tensor([-1.2, -2.0, -0.4])
    # Log ratios 0.2, 0 and -0.1, of one row: 0.1 in all, and a third of it in the mean.
    ratio = math.exp(0.1 if name == "RLOO" else 0.1 / 3)
    advantages = torch.tensor([1.0, 1.0, -0.5])
    gain = algorithm.gain(Tokens(new, old, advantages, [3])).gain_N
    of_a_token = 1 / 3 if name == "RLOO" else 1.0
    assert gain.tolist() == pytest.approx([ratio * a * of_a_token for a in (1.0, 1.0, -0.5)])
    gain.sum().backward()
    # Before, all had the gradient of their mean: 0.5.
    assert new.grad.tolist() == pytest.approx([ratio, ratio, -0.5 * ratio])


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (lambda x_N: x_N, "got Tensor"),
        (lambda x_N: Gain(x_N[:, None], x_N > 0), r"got Gain of \[\(3, 1\), \(3,\)\]"),
        (lambda x_N: Gain(x_N.mean(), x_N > 0), r"got Gain of \[\(\), \(3,\)\]"),
        (lambda x_N: Gain(x_N, None), r"got Gain of \[\(3,\), None\]"),
        (lambda x_N: Gain(x_N.detach(), x_N > 0), "the first with a gradient"),
    ],
)
def test_what_a_loss_of_ones_own_gains_is_checked(given, got):
    x_N = torch.ones(3, requires_grad=True)
    check_gain(Gain(x_N, x_N > 0), 3)
    with pytest.raises(AlgorithmError, match=got):
        check_gain(given(x_N), 3)
