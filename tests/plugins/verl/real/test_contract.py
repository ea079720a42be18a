"""What we use of verl, one test per place: when a release moves it, the sentence says what.

Nothing here trains. A failure means: look at the named module of ours before allowing that release
in ``agl_verl/versions.py``.
"""

import dataclasses
import inspect

import pytest

pytest.importorskip("verl")

from verl_cpu.config import cpu_config
from verl_cpu.inference_server import Sampled

from agl_verl.configuration import known_keys
from agl_verl.versions import WANTED, check_versions, installed


def parameters(function):
    return list(inspect.signature(function).parameters)


def require(function, *names):
    """The function takes these names (a ``**`` parameter takes any)."""
    signature = inspect.signature(function)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return
    missing = [name for name in names if name not in signature.parameters]
    assert not missing, f"{function.__qualname__} no longer takes {missing}; it has {signature}"


def require_methods(owner, *names):
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    assert not missing, f"{owner.__qualname__} no longer has {missing}"


def test_installed_versions_are_those_we_want():
    check_versions()


def test_run_ppo_takes_config_and_task_runner_class():
    from verl.trainer.main_ppo import run_ppo

    assert parameters(run_ppo) == ["config", "task_runner_class"], "see agl_verl.algorithm"


def test_agent_loop_output_has_the_fields_of_a_row():
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    output = AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 0, 1],
        response_logprobs=[-0.5, 0.0, -0.25],
        reward_score=0.75,
        num_turns=2,
        metrics=AgentLoopMetrics(generate_sequences=1.0),
        extra_fields={"min_global_steps": 0, "max_global_steps": 0, "reward_extra_info": {}},
    )
    row = output.as_dict()
    expected = {
        "prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "num_turns",
        "metrics", "extra_fields",
    }  # fmt: skip
    assert expected <= set(row), f"as_dict() lacks {expected - set(row)}; see agl_verl.queue"
    assert row["rm_scores"].tolist() == [0, 0, 0.75], "the reward is no longer on the last token"


def test_rows_become_a_tensordict():
    import torch
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [
        {"prompts": torch.tensor([1, 2]), "uid": "a", "multi_modal_inputs": {}},
        {"prompts": torch.tensor([3]), "uid": "b", "multi_modal_inputs": {}},
    ]
    data = list_of_dict_to_tensordict(rows)
    assert len(data) == 2
    assert [t.tolist() for t in data["prompts"].unbind()] == [[1, 2], [3]]


def test_transfer_queue_has_the_calls_we_make():
    import transfer_queue as tq

    require(tq.kv_put, "key", "partition_id", "tag")
    require(tq.kv_batch_put, "keys", "partition_id", "fields", "tags")
    require(tq.kv_batch_get, "keys", "partition_id", "select_fields")
    require(tq.kv_clear, "keys", "partition_id")
    assert callable(tq.init)
    assert callable(tq.close)


def test_llm_client_takes_tokens_and_says_versions():
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    for client in (LLMServerClient, FullyAsyncLLMServerClient):
        source = inspect.signature(inspect.unwrap(client.generate))
        names = list(source.parameters)
        assert names[:4] == ["self", "request_id", "prompt_ids", "sampling_params"], names
        text = inspect.getsource(client)
        assert "min_global_steps" in text, f"{client.__name__} no longer gives weight versions"
    expected = {"token_ids", "log_probs", "stop_reason", "extra_fields"}
    assert expected <= set(TokenOutput.model_fields), "see agl_verl.backend"
    ours = {field.name for field in dataclasses.fields(Sampled)}
    assert set(TokenOutput.model_fields) == ours, "see verl_cpu.inference_server.Sampled"


def test_replicas_are_registered_by_name():
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

    assert parameters(RolloutReplicaRegistry.register) == ["name", "loader"]
    require(
        RolloutReplica.__init__, "replica_rank", "config", "model_config", "is_reward_model",
        "is_teacher_model",
    )  # fmt: skip
    require(RolloutReplica.abort_all_requests, "self")
    require_methods(
        RolloutReplica, "launch_servers", "sleep", "wake_up", "abort_all_requests",
        "resume_generation", "clear_kv_cache", "release_kv_cache", "resume_kv_cache",
    )  # fmt: skip
    source = inspect.getsource(RolloutReplica.__init__)
    for name in ("_server_address", "_server_handle", "servers", "world_size"):
        assert f"self.{name}" in source, f"RolloutReplica no longer has {name!r}"


def test_weight_receivers_are_found_in_the_private_dictionary():
    from verl.workers.rollout import base

    registry = getattr(base, "_ROLLOUT_REGISTRY", None)
    assert isinstance(registry, dict), (
        "verl.workers.rollout.base._ROLLOUT_REGISTRY is gone or no dictionary; see verl_cpu.plugin"
    )
    assert ("vllm", "async") in registry, f"its keys have another form: {list(registry)}"
    from verl_cpu.inference import WeightReceiver

    assert base.get_rollout_class("agl_cpu", "async") is WeightReceiver


def test_engines_can_be_registered_for_the_cpu():
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    require(EngineRegistry.register, "model_type", "backend", "device")
    language = transformer_impl.FSDPEngineWithLMHead
    require(language._build_fsdp_module, "module")
    require_methods(language, "_build_module", "get_per_tensor_param", "initialize")
    assert hasattr(transformer_impl, "CPUOffloadPolicy"), "see verl_cpu.plugin (pinned memory)"


def test_platform_has_no_question_that_we_do_not_answer():
    from verl.plugin.platform import PlatformBase
    from verl_cpu.platform import CPUPlatform

    unanswered = {
        name for name in PlatformBase.__abstractmethods__ if name not in vars(CPUPlatform)
    }
    assert not unanswered, f"verl's platforms have new methods: {unanswered}"
    assert CPUPlatform().is_platform_available(use_smi_check=True) is False


def test_estimators_and_losses_are_registered_as_we_do():
    from verl.trainer.ppo import core_algos

    assert isinstance(core_algos.ADV_ESTIMATOR_REGISTRY, dict)
    require(core_algos.register_adv_est, "name_or_enum")
    loss = core_algos.get_policy_loss_fn("vanilla")
    require(
        loss, "old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config",
        "rollout_is_weights",
    )  # fmt: skip


def test_custom_datasets_are_made_as_ours():
    from verl.trainer.ppo.utils import create_rl_dataset

    source = inspect.getsource(create_rl_dataset)
    for name in ("data_files", "tokenizer", "processor", "config", "max_samples"):
        assert f"{name}=" in source, f"verl no longer gives datasets {name!r}; see tasks.py"


def test_metrics_that_we_assert_on_are_still_made():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.debug.metrics import calculate_debug_metrics

    assert "rollout_probs_diff_max" in inspect.getsource(calculate_debug_metrics)
    assert "calculate_debug_metrics(" in inspect.getsource(PPOTrainer)


@pytest.fixture(scope="module")
def verl_config():
    import hydra

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer")


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_settings_for_the_cpu_are_keys_of_verl(verl_config, mode):
    added = {  # not in verl's files; read by name from free sections
        "actor_rollout_ref.model.override_config.attn_implementation",
        "critic.model.override_config.attn_implementation",
        *(
            f"{engine}.mixed_precision.{name}"
            for engine in (
                "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config",
                "critic.fsdp",
            )
            for name in ("param_dtype", "reduce_dtype", "buffer_dtype")
        ),
        "ray_kwargs.ray_init.num_gpus",
        "ray_kwargs.ray_init.include_dashboard",
        "ray_kwargs.ray_init.object_store_memory",
    }  # fmt: skip
    from omegaconf import OmegaConf

    settings = cpu_config("model", mode=mode, critic=True, reference=True)
    unknown = [
        key for key in flat(settings) if key not in added and not known(verl_config, key, OmegaConf)
    ]
    assert not unknown, f"verl's configuration no longer has {unknown}; see verl_cpu/config.py"


def flat(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def known(config, key, omegaconf):
    parent, _, last = key.rpartition(".")
    section = omegaconf.select(config, parent) if parent else config
    return section is not None and last in list(section.keys())


def test_sections_are_those_of_verl(verl_config):
    theirs = {str(name) for name in verl_config if name not in ("model_engine",)}
    assert set(known_keys()) >= theirs - {"skip"}, (
        f"new sections of verl: {theirs - set(known_keys())}"
    )


def test_settings_pass_verls_own_validation(verl_config, tiny_model):
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = verl_config.copy()
    OmegaConf.set_struct(config, False)
    with open_dict(config):
        config = OmegaConf.merge(config, cpu_config(tiny_model))
    validate_config(config, need_reference_policy(config), need_critic(config))


def test_versions_are_looked_up_by_the_names_of_distributions():
    assert None not in installed().values(), installed()
    assert set(installed()) == set(WANTED)
