"""Schedules, the penalty that adapts, other trainers' names, options that would do nothing."""

import functools
import inspect
import random

import pytest

pytest.importorskip("torch")

import torch

import agl_torch
from agl.algorithm.base import Algorithm
from agl.errors import ConfigError, UnknownArgumentError
from agl.plugins import registry
from agl.plugins.build import plan_component
from agl.plugins.schema import schema_of, with_inner
from agl_learning.run.checkpoint import Progress, making
from agl_runs.options import pick_options
from agl_torch.adapter import fingerprint
from agl_torch.checkpoint import restore, save
from agl_torch.critic import Critic
from agl_torch.learner import Learner, Sample
from agl_torch.loss import next_coefficient
from agl_torch.option_names import INSTEAD, OURS, OWNERS
from agl_torch.options import KL, LearnerOptions, Schedule

from .conftest import build_model
from .test_learner import RULE, make_row

ALGORITHMS = [
    *(agl_torch.CISPO, agl_torch.GRPO, agl_torch.GSPO, agl_torch.PPO),
    *(agl_torch.ReinforcePlusPlus, agl_torch.RLOO),
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 2}, [1 / 2, 1, 1, 1, 1, 1]),
        ({"type": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"type": "linear", "warmup_steps": 2}, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        # (1 + cos(pi * k / 4)) / 2: 1, 0.853553, 0.5, 0.146447.
        ({"type": "cosine", "warmup_steps": 2}, [1 / 2, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_factors_of_the_learning_rate_by_hand(options, expected):
    found = [Schedule(**options).factor(n, 6) for n in range(6)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert Schedule(**options).factor(7, 6) in (0.0, 1.0)


def test_the_coefficient_follows_its_target_by_hand():
    # 10 % too much: 1 + 0.1 * 0.1. Fifty times too much counts as 20 %, and so does none at all.
    assert next_coefficient(0.5, 0.11, 0.1) == pytest.approx(0.505)
    assert next_coefficient(0.5, 5.0, 0.1) == pytest.approx(0.51)
    assert next_coefficient(0.5, 0.0, 0.1) == pytest.approx(0.49)


def test_an_update_has_the_rate_and_the_coefficient_mades_time():
    given = {"kl": {"coefficient": 0.5, "target": 1e-9}, "sampling_correction": "none"}
    options = LearnerOptions(learning_rate=0.01, schedule="linear", **given)
    learner = Learner(build_model(), options, RULE)
    measured = learner.update([Sample(make_row("a", 5), [1.0])], 0.25)
    assert measured["learning_rate"] == pytest.approx(0.0025)
    assert {group["lr"] for group in learner.optimizer.param_groups} == {0.0025}
    assert measured["kl_coefficient"] == 0.5
    assert learner.kl_coefficient == pytest.approx(0.49)  # it had not moved when that was measured
    second = learner.update([Sample(make_row("a", 5), [1.0])], 0.25)
    assert second["kl"] > 1e-9
    assert learner.kl_coefficient == pytest.approx(0.49 * 1.02)


EVERY = [*ALGORITHMS, functools.partial(agl_torch.Distillation, teacher="none")]
DO_NOTHING = [
    ({"kl": {"target": 0.1}}, "kl.target changes kl.coefficient, and that is 0"),
    ({"schedule": {"warmup_steps": 5}, "steps": 5}, "warmup_steps is 5, and the run has 5"),
    ({"checkpoints": {"keep_last": 2}}, "without checkpoints.every there is one, at the end"),
    ({"loss": {"constant": 9}}, "loss.constant goes with loss.type 'dr_grpo'"),
    ({"loss": "dr_grpo"}, "loss.constant goes with loss.type 'dr_g"),
    ({"overlong": {"penalty": 0.5}}, "without overlong.buffer no answer is pun"),
    ({"overlong": 5}, "Give max_tokens, and fewer tokens than that"),
    ({"overlong": 5, "max_tokens": 5}, "Give max_tokens, and fewer"),
    ({"server": {"arguments": ["--more"]}}, "server.arguments is for a server of its own"),
    ({"server": {"timeout_seconds": 9.0}}, "server.timeout_seconds is for a server of its own"),
    ({"max_staleness": 1, "deterministic": True}, "deterministic cannot be had with max_stal"),
    ({"max_staleness": 1, "clip": {"ratio_cap": None}, "sampling_correction": "none"}, "ratio_cap"),
    ({"sampling_correction": {"type": "none", "cap": 2.0}}, "sampling_correction.cap is"),
    ({"estimator": {"type": "gpg", "normalise_std": False}}, "estimator.normalise_std"),
    ({"value_coefficient": 0.5}, "critic 'copy' shares no weights with it"),
    ({"gamma": 0.9, "estimator": "reinforce_plus_plus_baseline"}, "gamma is 0.9, and the estim"),
]
"""Options that do nothing beside the others, or not what they say -> what is said of them."""


def has(made, options):
    """Whether an algorithm has all of these options."""
    return {*options} <= {*inspect.signature(made).parameters}


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        *((one, *row) for one in EVERY for row in DO_NOTHING if has(one, row[0])),
        (agl_torch.RLOO, {"group_size": 1}, "compares rollouts of one task"),
        (agl_torch.GRPO, {"group_size": 1}, "compares rollouts of one task"),
        (agl_torch.GRPO, {"max_staleness": 1, "max_refills": 2}, "max_refills cannot be had"),
        (agl_torch.GRPO, {"max_staleness": -1}, "max_staleness"),
        (agl_torch.PPO, {"max_refills": 1}, "compares no groups that could be refilled"),
        (agl_torch.ReinforcePlusPlus, {"max_refills": 1}, "compares no groups that could be"),
    ],
)
def test_options_that_would_do_nothing_are_refused(made, options, message):
    with pytest.raises(ConfigError, match=message):
        made(model="none", **options)


def test_every_option_that_can_do_nothing_is_refused_by_an_algorithm():
    assert [row for row in DO_NOTHING if not any(has(one, row[0]) for one in EVERY)] == []


def test_single_rollouts_are_enough_where_no_siblings_are_compared():
    for made in (agl_torch.PPO, agl_torch.ReinforcePlusPlus):
        assert made(model="none", group_size=1).group_size == 1


@pytest.mark.parametrize("critic", ["head", "copy"])
def test_a_critic_goes_on_where_its_checkpoint_was(critic, tmp_path, tokenizer):
    rates = {"critic_learning_rate": 0.01, "learning_rate": 0.01}
    kl = {"coefficient": 0.1, "target": 0.01}
    algorithm = agl_torch.PPO(model="none", critic=critic, kl=kl, **rates)

    def build(model):
        options = pick_options(LearnerOptions, algorithm)
        made = algorithm.build_critic(model)
        return Learner(model, options, algorithm.objective(), reference=build_model(), critic=made)

    def sample():
        return Sample(make_row("a", 5), [1.0], [1.0], [0.0])

    first = build(build_model())
    first.update([sample()])
    with making(tmp_path / "checkpoints/step-000001", Progress(1, 1)) as partial:
        save(partial, first, tokenizer, random.Random(0))
    folder = tmp_path / "checkpoints/step-000001"
    second = build(type(first.model).from_pretrained(folder))
    restore(folder, second, random.Random(0))
    assert second.kl_coefficient == first.kl_coefficient != 0.1
    expected = dict(first.critic.named_parameters())
    for name, one in second.critic.named_parameters():
        assert torch.equal(one, expected[name])
    assert expected["head.weight"].any()
    # Another run, begun from there with another coefficient, keeps its own.
    algorithm.kl = KL(coefficient=0.9)
    other = build(type(first.model).from_pretrained(folder))
    restore(folder, other, random.Random(0))
    assert other.kl_coefficient == 0.9
    for learner in (first, second):
        learner.update([sample()])
    assert fingerprint(first.model, first.critic) == fingerprint(second.model, second.critic)
    assert torch.any(first.critic.head.weight != 0)
    # One that does not fit is refused, whatever it lacks.
    kept = second.critic
    fresh = build_model(seed=1)
    others = [None, Critic(fresh, is_apart=critic == "head"), Critic(fresh, is_apart=True)]
    others[2].head = torch.nn.Linear(32, 2)
    for second.critic in others:
        with pytest.raises(ConfigError, match="Give the critic that the run had"):
            restore(folder, second, random.Random(0))
    second.critic = kept
    restore(folder, second, random.Random(0))


def options_of(name):
    component = registry.find("agl.algorithms", name)
    return {one.name for one in with_inner(schema_of(registry.load_component(component)).options)}


@pytest.mark.parametrize(
    ("name", "option", "hint"),
    [
        ("grpo", "beta", "Here it is 'kl.coefficient'"),
        ("grpo", "warmup_ratio", "Here give 'schedule.warmup_steps'"),
        ("grpo", "vf_coef", "Here it is 'value_coefficient', an option of 'ppo', and none of 'gr"),
        ("ppo", "vf_coef", "Here it is 'value_coefficient'"),
        ("grpo", "gae_lambda", "It is an option of 'ppo', and none of 'grpo'"),
        ("cispo", "clip_range", "Here it is 'clip', an option of 'grpo', and none of 'cispo'"),
        ("grpo", "lorra", "Did you mean .lora"),
    ],
)
def test_another_trainers_name_is_refused_with_ours(name, option, hint):
    spec = {"type": name, "model": "none", option: 1}
    with pytest.raises(ConfigError, match=f"{option}: unknown key.*{hint}"):
        plan_component(spec, group="agl.algorithms", expected_type=Algorithm, where="algorithm")


def test_so_it_is_in_python():
    with pytest.raises(UnknownArgumentError, match=r"GRPO.*'beta'.*'kl.coefficient'"):
        agl_torch.GRPO(model="none", beta=0.1)
    with pytest.raises(TypeError, match="lora_rnk"):
        agl_torch.GRPO(model="none", lora_rnk=1)


def test_an_option_of_that_name_is_taken_where_a_subclass_has_one():
    class Mine(agl_torch.GRPO):
        def __init__(self, beta, **options):
            super().__init__(**options)
            self.beta = beta

    assert Mine(beta=0.1, model="none").beta == 0.1


def test_what_is_named_is_there():
    everywhere = options_of("grpo") | options_of("ppo")
    assert set(OURS.values()) <= everywhere
    assert not set(OURS) & everywhere
    assert not set(INSTEAD) & everywhere
    assert all(option in options_of(owner) for option, owner in OWNERS.items())
