"""Gradient steps and checkpoints of the learner, without a server."""

import dataclasses
import random

import pytest
import torch

from agl.errors import ConfigError
from agl.tasks import TaskOrder
from agl.types import Credit, TrainingRow
from agl_torch.checkpoint import Progress, find_checkpoint, restore, save_checkpoint
from agl_torch.learner import Learner, LearnerOptions, Sample

from .conftest import build_model

OPTIONS = LearnerOptions(
    learning_rate=1e-2,
    epochs=2,
    minibatch_rows=2,
    microbatch_tokens=None,
    clip_low=1.0,  # wide, as the recorded log-probabilities are made up
    clip_high=10.0,
    entropy_bonus=0.0,
    kl_coefficient=0.0,
    max_grad_norm=1.0,
    weight_decay=0.0,
    temperature=1.0,
)


def make_row(rollout_id, answer, reward=0.0, version="0"):
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id=f"at-{rollout_id}",
        token_ids=[1, 4, 3, 2, answer],
        logprobs=[0.0] * 4 + [-2.7],
        call_ids=[f"call-{rollout_id}-{answer}"],
        call_ranges=[(4, 5)],
        credits=[Credit(reward=reward)],
        model_versions=[version],
    )


def probability(model, answer):
    with torch.no_grad():
        return model(torch.tensor([[1, 4, 3, 2]])).logits[0, -1].softmax(-1)[answer].item()


def samples():
    return [Sample(make_row("a", 5), [1.0]), Sample(make_row("b", 6), [-1.0])]


def test_update_makes_good_tokens_likelier_and_bad_ones_rarer(model):
    good, bad = probability(model, 5), probability(model, 6)
    measured = Learner(model, OPTIONS).update(samples())
    assert probability(model, 5) > good
    assert probability(model, 6) < bad
    assert measured["gradient_steps"] == 2
    assert measured["grad_norm"] > 0


def test_minibatches_make_as_many_steps_as_they_are(model):
    options = dataclasses.replace(OPTIONS, minibatch_rows=1, epochs=3)
    assert Learner(model, options).update(samples())["gradient_steps"] == 6


def test_a_gradient_that_is_not_finite_is_an_error_and_changes_nothing(model):
    before = [p.clone() for p in model.parameters()]
    bad = samples()
    bad[0].advantages = [float("inf")]
    with pytest.raises(FloatingPointError, match="the gradient is not finite"):
        Learner(model, OPTIONS).update(bad)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_training_resumed_from_a_checkpoint_is_training_that_never_stopped(tmp_path, tokenizer):
    straight = Learner(build_model(), OPTIONS, seed=3)
    straight.update(samples())
    sampler_random = random.Random(9)
    sampler_random.random()
    tasks = TaskOrder(5, seed=1)
    tasks.take(3)
    folder = save_checkpoint(
        tmp_path / "checkpoints/step-000001",
        straight,
        tokenizer,
        Progress(1, 7, {"calls": 4}, tasks.state()),
        sampler_random,
    )
    straight.update(samples())

    model = type(straight.model).from_pretrained(find_checkpoint(tmp_path))
    resumed, resumed_random = Learner(model, OPTIONS, seed=0), random.Random(0)
    progress = restore(folder, resumed, resumed_random)
    resumed.update(samples())
    assert (progress.step, progress.version, progress.totals) == (1, 7, {"calls": 4})
    for a, b in zip(straight.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed_random.random() == sampler_random.random()
    resumed_tasks = TaskOrder(5, seed=99)
    resumed_tasks.restore(progress.tasks)
    assert resumed_tasks.take(9) == tasks.take(9)


def test_a_folder_without_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        find_checkpoint(tmp_path)


def test_the_newest_checkpoint_of_a_run_is_found_and_partial_ones_are_not(tmp_path):
    for name in ("step-000002", "step-000010", ".step-000012.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "grpo_state.json").touch()
    assert find_checkpoint(tmp_path).name == "step-000010"


def test_rollouts_weigh_the_same(model):
    def two_calls(rollout_id, first, second):
        return TrainingRow(
            rollout_id=rollout_id,
            attempt_id="at",
            token_ids=[1, 4, 5, 3, 6],
            logprobs=[0.0, 0.0, -2.7, 0.0, -2.7],
            call_ids=["one", "two"],
            call_ranges=[(2, 3), (4, 5)],
            credits=[Credit(reward=first, group="call 1"), Credit(reward=second, group="call 2")],
            model_versions=["0", "0"],
        )

    result = [
        Sample(two_calls("a", 1.0, 3.0).only([1]), [1.0]),
        Sample(two_calls("b", 1.0, 1.0).only([1]), [-1.0]),
    ]
    # One rollout weighs as much as the other, and only the second call's token counts.
    Learner(model, OPTIONS).update(result)
    assert [s.weight for s in result] == [0.5, 0.5]
