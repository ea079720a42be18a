"""Configurations laid on verl's own defaults, and looked at by verl; no Ray, no training."""

import functools
import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("verl")

from tests.plugins.verl import test_configuration
from tests.plugins.verl.test_configuration import OFTEN
from verl_cpu import cpu_config

import agl
from agl.errors import ConfigError
from agl_verl.configuration import compose, known_keys
from agl_verl.preflight import check_cluster, needs
from agl_verl.run import verl_config
from agl_verl.versions import conflicts

ROOT = Path(__file__).parents[4]
GUIDE = {**test_configuration.GUIDE, "trainer": {"n_gpus_per_node": 1, **OFTEN}}
TASKS = [{"number": number} for number in range(64)]


def whole(config, tmp_path, train=TASKS, val=TASKS, **options):
    return verl_config(compose(agl.VERL(config, **options).config), tmp_path, train, val)


GONE_IN_0_9_1 = {"router_replay", "grad_offload", "activation_gpu_limit", "continuous_token"}
"""Keys of verl 0.9.0 that we refuse: the documentation says so."""


def test_known_keys_are_those_of_the_installed_verl():
    path = Path(__file__).parent / "known_keys.py"
    spec = importlib.util.spec_from_file_location("known_keys", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.known_keys()
    found["model_engine"] = None
    import verl

    if verl.__version__ == "0.9.1":
        assert found == known_keys(), f"run: python {path.relative_to(ROOT)}"
    else:
        unknown = [
            key
            for key in keys(found)
            if key not in set(keys(known_keys())) and not GONE_IN_0_9_1 & set(key.split("."))
        ]
        assert not unknown, f"verl {verl.__version__} has keys that we would refuse: {unknown}"


def keys(node, path=""):
    for key, value in node.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from keys(value, f"{path}{key}.")


def test_the_guides_configuration_passes_verls_own_check(tmp_path):
    config = whole(GUIDE, tmp_path)
    assert config.algorithm.adv_estimator == "agl_grpo"
    assert config.actor_rollout_ref.rollout.multi_turn.format == "hermes"
    assert config.data.train_files == "agl:64"
    assert config.trainer.default_local_dir == str(tmp_path / "checkpoints")
    assert list(config.trainer.logger) == ["console"]


def test_micro_batches_that_do_not_divide_the_rows_are_refused_at_once(tmp_path, tiny_model):
    config = cpu_config(tiny_model, prompts_per_step=7, rollouts_per_prompt=3)
    with pytest.raises(ConfigError, match=r"ppo_micro_batch_size_per_gpu is 8.* the 21 rows"):
        whole(config, tmp_path)
    config["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] = 7
    with pytest.raises(ConfigError, match=r"rollout\.log_prob_micro_batch_size_per_gpu is 8"):
        whole(config, tmp_path)
    config["actor_rollout_ref"]["rollout"]["log_prob_use_dynamic_bsz"] = True
    whole(config, tmp_path)


@pytest.mark.timeout(240)  # composing takes seconds each time
def test_every_algorithm_passes_verls_own_check_and_has_what_it_stands_for(tmp_path, tiny_model):
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_policy_loss_fn
    from verl.trainer.ppo.utils import need_critic
    from verl.utils.config import omega_conf_to_dataclass

    from agl_verl.algorithms import ALGORITHMS
    from agl_verl.trainer_mixin import check, register_estimators

    register_estimators()
    config = json.loads(json.dumps(GUIDE))
    config["algorithm"] = {}
    config["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] = 1
    config["actor_rollout_ref"]["rollout"]["log_prob_micro_batch_size_per_gpu"] = 1
    config["actor_rollout_ref"]["model"]["path"] = str(tiny_model)  # a critic's is looked at
    with pytest.raises(ConfigError, match="set algorithm"):
        check(whole(config, tmp_path, algorithm="gdpo"))
    config["algorithm"] = {"gdpo_reward_keys": ["primary"]}
    for name, algorithm in ALGORITHMS.items():
        composed = whole(config, tmp_path, algorithm=name)
        check(composed)
        for key, value in algorithm.changes.items():
            assert functools.reduce(lambda node, k: node[k], key.split("."), composed) == value
        assert composed.algorithm.adv_estimator in ADV_ESTIMATOR_REGISTRY
        assert need_critic(composed) == (name == "ppo")
        actor = omega_conf_to_dataclass(composed.actor_rollout_ref.actor)
        assert callable(get_policy_loss_fn(actor.policy_loss.loss_mode))


def test_cpus_are_declared_where_nobody_says_how_many(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = whole(GUIDE, tmp_path)
    assert config.ray_kwargs.ray_init.num_cpus >= needs(config).cpus
    few = {**GUIDE, "ray_kwargs": {"ray_init": {"num_cpus": 4}}}
    with pytest.raises(ConfigError, match=r"num_cpus is 4, and this run needs .* Leave it out"):
        whole(few, tmp_path)
    # A cluster that runs has what it has, and Ray refuses to be told.
    running = {**GUIDE, "ray_kwargs": {"ray_init": {"num_cpus": 4, "address": "auto"}}}
    assert "num_cpus" not in whole(running, tmp_path).ray_kwargs.ray_init


def test_a_cluster_that_is_too_small_is_refused_with_what_is_missing(tmp_path):
    config = whole(GUIDE, tmp_path)
    check_cluster(config, {"GPU": 1, "CPU": 64})
    with pytest.raises(ConfigError, match="has 0 GPUs and this run needs 1"):
        check_cluster(config, {"CPU": 64})
    with pytest.raises(ConfigError, match="has 2 CPUs and this run needs"):
        check_cluster(config, {"GPU": 1, "CPU": 2})


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("actor", "ppo_micro_batch_size_per_gpu", 4, "verl refuses it: .*log_prob_micro_batch"),
        ("rollout", "tensor_model_parallel_size", 2, "1 GPUs do not make whole rollout servers"),
    ],
)
def test_what_verl_refuses_is_said_before_anything_starts(tmp_path, part, key, value, said):
    wrong = json.loads(json.dumps(GUIDE))
    wrong["actor_rollout_ref"][part][key] = value
    with pytest.raises(ConfigError, match=said):
        whole(wrong, tmp_path)


def test_trainers_are_verls_own_with_our_mixins_before_them(tmp_path):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from agl_verl.trainer_mixin import RolloutAdvantages
    from agl_verl.trainers import Accounted, trainer_class

    class Mine(PPOTrainerSync):
        pass

    config = whole(GUIDE, tmp_path)
    for made, base in (
        (trainer_class(config), PPOTrainerSync),
        (trainer_class(config, Mine), Mine),
        (trainer_class(config, "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync"), PPOTrainerSync),
    ):
        order = made.__mro__
        assert order.index(Accounted) < order.index(RolloutAdvantages) < order.index(base)
        assert made.step is PPOTrainerSync.step, "verl's train step was replaced"
    with pytest.raises(
        ConfigError, match=r"VERL: trainer_cls: expected a subclass of .*PPOTrainer"
    ):
        trainer_class(config, dict)
    config.trainer.v1.trainer_mode = "asynchronous"
    with pytest.raises(ConfigError, match="trainers: colocate_async, separate_async, sync"):
        trainer_class(config)


def test_fewer_tasks_than_a_step_takes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="31 training tasks, and a step takes"):
        whole(GUIDE, tmp_path, train=TASKS[:31])


def test_validation_without_tasks_is_refused_where_it_was_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="there are no validation tasks"):
        whole(GUIDE, tmp_path, val=None)
    quiet = {**GUIDE, "trainer": {"n_gpus_per_node": 1}}
    assert whole(quiet, tmp_path, val=None).trainer.val_before_train is False


def test_the_tested_set_fits():
    assert conflicts() == []
