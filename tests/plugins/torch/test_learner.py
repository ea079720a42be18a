"""Gradient steps and checkpoints of the learner, without a server."""

import dataclasses
import math
import random

import pytest
import torch
from tests.libs.learning.rollouts_by_hand import make_row

from agl.errors import ConfigError
from agl.utils.rewards import MAX_REWARD
from agl_learning.run.checkpoint import Progress, find_checkpoint, making
from agl_torch.checkpoint import restore, save
from agl_torch.learner import Learner, LearnerOptions, Objective, Sample
from agl_torch.loss import clipped

from .conftest import build_model

OPTIONS = LearnerOptions(
    **{"learning_rate": 1e-2, "epochs": 2, "minibatch_rows": 2, "memory": None},
    **{"entropy_bonus": 0.0, "kl": 0.0, "temperature": 1.0},
    optimizer={"max_grad_norm": 1.0, "weight_decay": 0.0},
)
# Wide bounds, as the recorded log-probabilities are made up.
RULE = Objective(lambda tokens: clipped(tokens.log_ratio_N, tokens.advantages_N, 1.0, 10.0))


def save_checkpoint(folder, learner, tokenizer, progress, sampler_random):
    with making(folder, progress) as partial:
        save(partial, learner, tokenizer, sampler_random)
    return folder


def probability(model, answer):
    with torch.no_grad():
        return model(torch.tensor([[1, 4, 3, 2]])).logits[0, -1].softmax(-1)[answer].item()


def samples():
    return [Sample(make_row("a", 5), [1.0]), Sample(make_row("b", 6), [-1.0])]


def test_update_makes_good_tokens_likelier_and_bad_ones_rarer(model):
    good, bad = probability(model, 5), probability(model, 6)
    measured = Learner(model, OPTIONS, RULE).update(given := samples())
    assert probability(model, 5) > good
    assert probability(model, 6) < bad
    assert measured["gradient_steps"] == 2
    assert measured["grad_norm"] > 0
    update = Learner(model, dataclasses.replace(OPTIONS, epochs=1), RULE).update
    assert update(given)["logprob_gap"] != update(given)["logprob_gap"]


def test_a_rollout_of_which_nothing_is_trained_counts_in_the_mean():
    options = dataclasses.replace(OPTIONS, epochs=1, minibatch_rows=None)

    def norm(**given):
        rows = [dataclasses.replace(one, **given) for one in samples()]
        return Learner(build_model(), options, RULE).update(rows)["grad_norm"]

    assert norm(left_out={"c": 1}) == pytest.approx(norm() * 2 / 3)


def test_the_largest_advantages_leave_weights_and_metrics_finite(model):
    given = [Sample(make_row("a", 5), [MAX_REWARD]), Sample(make_row("b", 6), [-MAX_REWARD])]
    measured = Learner(model, OPTIONS, RULE).update(given)
    assert all(math.isfinite(value) for value in measured.values())
    assert all(torch.isfinite(weights).all() for weights in model.parameters())


def test_a_token_that_a_form_forced_teaches_nothing_and_the_others_as_ever():
    options = dataclasses.replace(OPTIONS, kl=0.1, epochs=1, minibatch_rows=None)
    objective = dataclasses.replace(RULE, mean="dr_grpo", constant=1)
    made = []
    for start in (4, 5):  # sampled with probability 1, or given
        changed = {"token_ids": [1, 4, 3, 2, 5, 6], "logprobs": [0.0] * 5 + [-2.7]}
        changed |= {"call_ranges": [(start, 6)], "constrained": [start == 4]}
        row = make_row("c", 5).model_copy(update=changed)
        learner = Learner(build_model(), options, objective)
        learner.update([Sample(row, [-1.0] * row.num_sampled), *samples()])
        made.append([weight.grad for weight in learner.model.parameters()])
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(*made, strict=True))


@pytest.mark.parametrize("form", [0.0, 2.5])
def test_a_token_that_a_form_made_likelier_is_compared_with_what_was_recorded(model, form):
    objective = Objective(lambda tokens: clipped(tokens.log_ratio_N, tokens.advantages_N))
    rarest = min(range(10), key=lambda answer: probability(model, answer))
    recorded = math.log(probability(model, rarest)) + form
    changed = {"logprobs": [0.0] * 4 + [recorded], "constrained": [True]}
    row = make_row("a", rarest).model_copy(update=changed)
    learner = Learner(model, dataclasses.replace(OPTIONS, epochs=1), objective)
    # A bad token that a form made e^2.5 times as likely is below the clip already.
    measured = learner.update([Sample(row, [-1.0])])
    assert (measured["grad_norm"] > 0) is (form == 0)
    assert (measured["logprob_gap"], measured["sampling_weight"]) == (0, 1)


@pytest.mark.parametrize(
    ("correction", "is_current", "less", "weight"),
    [
        ("sequence_mask", True, 0.5, math.exp(0.5)),
        ("sequence_mask", True, 1.2, 0.0),  # above the cap of 3, e^1.2
        ("sequence_mask", False, 1.2, 3.0),
        ("token_truncate", True, 0.5, math.exp(0.5)),
        ("token_truncate", True, 1.2, 3.0),
        ("sequence_mask", True, -120.0, math.exp(-20)),
        ("none", True, 1.2, 1.0),
    ],
)
def test_a_row_counts_as_the_trainer_likes_its_tokens(model, correction, is_current, less, weight):
    """Each token by e^d, up to the cap; or all of a row by its sum, and not at all above it."""
    row = make_row("a", 5)
    row.logprobs[-1] = math.log(probability(model, 5)) - less
    options = {"sampling_correction": correction, "epochs": 1, "learning_rate": 0.0}
    learner = Learner(model, dataclasses.replace(OPTIONS, **options), RULE)
    sample = Sample(row, [1.0], is_current=is_current)
    measured = learner.update([sample])
    assert measured["sampling_weight"] == pytest.approx(weight, rel=1e-4)
    assert measured["logprob_gap"] == pytest.approx(abs(less), rel=1e-4)
    assert sample.is_masked is (weight == 0)
    assert measured["masked_fraction"] == 1 - measured["gradient_steps"] == float(weight == 0)
    assert (measured["grad_norm"] > 0) is (weight > 0)


def test_an_entropy_bonus_makes_the_model_less_sure(model):
    options = {"entropy_bonus": 0.5, "epochs": 1, "learning_rate": 1e-4}
    learner = Learner(model, dataclasses.replace(OPTIONS, **options), RULE)
    first, second = (learner.update([Sample(make_row("a", 5), [0.0])]) for _ in range(2))
    assert first["loss/total"] == pytest.approx(first["loss/policy"] - 0.5 * first["entropy"])
    assert second["entropy"] > first["entropy"]


@pytest.mark.parametrize("betas", [{}, {"beta1": 0.5, "beta2": 0.75}])
@pytest.mark.parametrize(("name", "decay"), [("self_attn.q_proj", 0.5), ("input_layernorm", 0.0)])
def test_a_weight_moves_by_adam_and_only_matrices_decay(model, betas, name, decay):
    beta1, beta2 = betas.get("beta1", 0.9), betas.get("beta2", 0.999)
    optimizer = {"weight_decay": 0.5, "max_grad_norm": 1e9, **betas}
    options = LearnerOptions(learning_rate=0.01, optimizer=optimizer)
    learner = Learner(model, options, RULE)
    weight = model.get_parameter(f"model.layers.0.{name}.weight")
    expected, mean, square = weight.detach().clone(), 0.0, 0.0
    for step in (1, 2, 3):
        learner.update(samples())
        mean = beta1 * mean + (1 - beta1) * weight.grad
        square = beta2 * square + (1 - beta2) * weight.grad**2
        moved = mean / (1 - beta1**step) / ((square / (1 - beta2**step)) ** 0.5 + 1e-8)
        expected = expected * (1 - 0.01 * decay) - 0.01 * moved
        assert torch.allclose(weight, expected, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_an_error_and_changes_nothing(model):
    before = [p.clone() for p in model.parameters()]
    bad = samples()
    bad[0].advantages = [float("inf")]
    with pytest.raises(FloatingPointError, match=r"step 1 .* is not finite .*the 0 before it were"):
        Learner(model, OPTIONS, RULE).update(bad)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_of_gradient_steps_before_one_that_is_not_finite_the_error_says_how_many(model):
    order = [0, 1]
    random.Random(0).shuffle(order)
    both = samples()
    both[order[1]].advantages = [float("inf")]
    learner = Learner(model, dataclasses.replace(OPTIONS, minibatch_rows=1), RULE, seed=0)
    with pytest.raises(FloatingPointError, match=r"step 2 .*the 1 before it were"):
        learner.update(both)


def test_training_resumed_from_a_checkpoint_is_training_that_never_stopped(tmp_path, tokenizer):
    straight = Learner(build_model(), OPTIONS, RULE, seed=3)
    straight.update(samples())
    sampler_random = random.Random(9)
    sampler_random.random()
    progress, place = Progress(1, 7, {"calls": 4}, 3), tmp_path / "checkpoints/step-000001"
    folder = save_checkpoint(place, straight, tokenizer, progress, sampler_random)
    straight.update(samples())

    model = type(straight.model).from_pretrained(find_checkpoint(tmp_path))
    resumed, resumed_random = Learner(model, OPTIONS, RULE, seed=0), random.Random(0)
    restore(folder, resumed, resumed_random)
    progress = Progress.of(folder)
    resumed.update(samples())
    assert (progress.step, progress.version, progress.totals) == (1, 7, {"calls": 4})
    for a, b in zip(straight.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed_random.random() == sampler_random.random()
    assert progress.taken == 3


def test_a_model_with_a_parameter_that_gets_no_gradient_is_resumed(tmp_path, tokenizer):
    def build():
        model = build_model()
        model.unused = torch.nn.Linear(2, 2)
        return model

    first = Learner(build(), OPTIONS, RULE)
    first.update(samples())
    folder = tmp_path / "checkpoints/step-000001"
    save_checkpoint(folder, first, tokenizer, Progress(1, 1), random.Random(0))
    second = Learner(build(), OPTIONS, RULE)
    second.model.load_state_dict(first.model.state_dict())
    restore(find_checkpoint(tmp_path), second, random.Random(0))
    for learner in (first, second):
        learner.update(samples())
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_model_is_refused(tmp_path, tokenizer):
    from transformers import LlamaForCausalLM

    learner = Learner(build_model(), OPTIONS, RULE)
    learner.update(samples())
    save(tmp_path, learner, tokenizer, random.Random(0))
    config = build_model().config
    config.hidden_size = 16
    with pytest.raises(ConfigError, match=r"of another model.*has shape \(15, 32\)"):
        restore(tmp_path, Learner(LlamaForCausalLM(config), OPTIONS, RULE), random.Random(0))


def test_weights_of_16_bits_are_not_trained():
    with pytest.raises(ConfigError, match=r"weights in torch\.bfloat16 cannot be trained"):
        Learner(build_model().bfloat16(), OPTIONS, RULE)
