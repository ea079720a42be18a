"""Other trainers' names of options: refused with ours, in a file and in Python."""

import pytest

import agl_torch
from agl.algorithm.base import Algorithm
from agl.errors import ConfigError, UnknownArgumentError
from agl.plugins import registry
from agl.plugins.build import plan_component
from agl.plugins.schema import schema_of, with_inner
from agl_torch.option_names import INSTEAD, OURS, OWNERS


def options_of(name):
    component = registry.find("agl.algorithms", name)
    return {one.name for one in with_inner(schema_of(registry.load_component(component)).options)}


@pytest.mark.parametrize(
    ("name", "option", "hint"),
    [
        ("grpo", "beta", "Here it is 'kl.coefficient'"),
        ("grpo", "num_generations", "Here it is 'group_size'"),
        ("grpo", "epsilon", "Here it is 'clip'"),
        ("grpo", "lr", "Here it is 'learning_rate'"),
        ("grpo", "max_completion_length", "Here it is 'max_tokens'"),
        ("grpo", "scale_rewards", "Here it is 'estimator.normalise_std'"),
        ("grpo", "per_device_train_batch_size", "'groups_per_step' times 'group_size'"),
        ("grpo", "vf_coef", "Here it is 'value_coefficient', an option of 'ppo', and none of 'gr"),
        ("ppo", "vf_coef", "Here it is 'value_coefficient'"),
        ("grpo", "gae_lambda", "It is an option of 'ppo', and none of 'grpo'"),
        (
            "rloo",
            "scale_rewards",
            "'estimator.normalise_std', an option of 'grpo', and none of",
        ),
        ("cispo", "clip_range", "Here it is 'clip', an option of 'grpo', and none of 'cispo'"),
        ("grpo", "vllm_importance_sampling_mode", "Here it is 'sampling_correction'"),
        ("grpo", "vllm_importance_sampling_correction", "'none' turns it off"),
        ("grpo", "learner_processes", "one process trains; for several GPUs take"),
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
