"""What ``VERL(config)`` takes and refuses; needs no verl."""

import subprocess
import sys

import pytest

import agl
from agl.errors import ConfigError, install_line
from agl_verl.algorithms import ALGORITHMS
from agl_verl.configuration import Ours, check, read, with_algorithm

# The example of the guide `docs/how-to/train-sql-agent.md`, with what it leaves out in words.
OFTEN = {"test_freq": 32, "save_freq": 64, "total_epochs": 2}
GUIDE = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 32, "max_prompt_length": 4096, "max_response_length": 2048},
    "actor_rollout_ref": {
        "rollout": {"name": "vllm", "n": 4, "multi_turn": {"format": "hermes"}},
        "actor": {"ppo_mini_batch_size": 32, "optim": {"lr": 1e-6}},
        "model": {"path": "Qwen/Qwen2.5-Coder-1.5B-Instruct"},
    },
    "trainer": {"n_gpus_per_node": 1, "val_before_train": True, **OFTEN},
}


# What configurations for verl commonly set besides.
LAUNCHED = """
actor_rollout_ref:
  rollout: {tensor_model_parallel_size: 1, gpu_memory_utilization: 0.6}
  rollout.log_prob_micro_batch_size_per_gpu: 4
  rollout.engine_kwargs.vllm: {enable_auto_tool_choice: true, tool_call_parser: hermes}
  actor: {ppo_micro_batch_size_per_gpu: 4, use_kl_loss: false, kl_loss_coef: 0.0, entropy_coeff: 0}
  actor.clip_ratio_low: 0.2
  actor.clip_ratio_high: 0.3
  actor.fsdp_config: {param_offload: true, optimizer_offload: true}
  ref: {log_prob_micro_batch_size_per_gpu: 8, fsdp_config: {param_offload: true}}
  model: {use_remove_padding: true, enable_gradient_checkpointing: true}
trainer: {critic_warmup: 0, logger: [console, wandb], project_name: p, nnodes: 1}
trainer.experiment_name: e
"""


def refused(config, **options):
    with pytest.raises(ConfigError) as caught:
        agl.VERL(config, **options)
    return str(caught.value)


def test_the_guides_configuration_is_taken_as_it_stands():
    algorithm = agl.VERL(GUIDE)
    assert algorithm.config["data"] == GUIDE["data"]
    assert algorithm.config["trainer"] == GUIDE["trainer"]
    assert algorithm.config["algorithm"]["adv_estimator"] == "agl_grpo"
    assert GUIDE["algorithm"]["adv_estimator"] == "grpo", "the caller's dict was changed"
    assert algorithm.config["algorithm"]["use_kl_in_reward"] is False


def test_keys_of_launch_scripts_are_taken(tmp_path):
    (tmp_path / "verl.yaml").write_text(LAUNCHED)
    agl.VERL(str(tmp_path / "verl.yaml"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"data": {"train_files": "a.parquet"}}, "Trainer.fit(train_dataset=...)"),
        ({"custom_reward_function": {"path": "r.py"}}, "rewards come from the agent"),
        ({"reward_model": {"enable": True}}, "rewards come from the agent"),
        ({"trainer": {"profile_steps": [1]}}, "write global_profiler.steps"),
        ({"ray_init": {"num_cpus": 4}}, "write ray_kwargs.ray_init"),
        ({"critic": {"model": {"fsdp_config": {"param_offload": True}}}}, "write critic.fsdp"),
        ({"agentlightning": {"port": 9999}}, "Trainer(llm_proxy={'port': ...})"),
        ({"agl": {"port": 9999}}, "Trainer(llm_proxy={'port': ...})"),
        ("/nowhere.yaml", "'/nowhere.yaml' cannot be read"),
        (
            {"actor_rollout_ref": {"rollout": {"gpu_memory_utilisation": 0.5}}},
            "VERL config: actor_rollout_ref.rollout.gpu_memory_utilisation: unknown key. "
            "Did you mean 'gpu_memory_utilization'?",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused_with_what_to_write(config, says):
    assert says in refused(config)


def test_what_is_switched_off_is_no_reason_to_refuse():
    agl.VERL({"reward_model": {"enable": False}, "data": {"train_files": None}})


def test_dotted_keys_and_yaml_files_are_taken(tmp_path):
    path = tmp_path / "verl.yaml"
    path.write_text("trainer.nnodes: 2\ntrainer:\n  total_epochs: 3\n")
    expected = {"trainer": {"nnodes": 2, "total_epochs": 3}}
    assert read(str(path)) == expected
    assert read({"trainer.nnodes": 2, "trainer": {"total_epochs": 3}}) == expected
    assert agl.VERL(str(path)).config["trainer"] == expected["trainer"]


def test_free_sections_take_anything():
    runtime = {"address": "auto", "runtime_env": {"env_vars": {"A": "1"}}}
    models = {"actor_rollout_ref": {"model": {"override_config": {"x": {"y": 1}}}}}
    agl.VERL({**models, "ray_kwargs": {"ray_init": runtime}})


def test_rows_have_a_level_and_lengths():
    ours = check({"agl": {"trace_aggregator": {"level": "transition"}}})
    assert ours == Ours(level="transition")
    ours = check({"agentlightning": {"trace_aggregator": {"trajectory_max_prompt_length": 7}}})
    assert ours == Ours(trajectory_max_prompt_length=7)
    assert "level is 'turn'; expected trajectory or transition" in refused(
        {"agl": {"trace_aggregator": {"level": "turn"}}}
    )
    assert "Did you mean 'level'?" in refused({"agl": {"trace_aggregator": {"levl": "turn"}}})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_a_name_in_verls_configuration(name):
    config = {}
    assert with_algorithm(config, name) == name
    assert config["algorithm"]["adv_estimator"].startswith("agl_")
    check(config)  # all of it are keys of verl


def test_an_algorithm_is_said_in_one_place():
    message = refused({"algorithm": {"adv_estimator": "rloo"}}, algorithm="grpo")
    assert message.endswith("is 'rloo'; say it in one place")
    unknown = refused({}, algorithm="rlo")
    assert "unknown algorithm 'rlo'" in unknown
    assert "Did you mean 'rloo'?" in unknown


def test_what_an_algorithm_stands_for_is_not_set_against_the_configuration():
    losing = {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "gspo"}}}}
    message = refused(losing, algorithm="grpo")
    assert "loss_mode='vanilla'" in message
    assert "'gspo'" in message
    # Without a name the configuration is the word.
    config = agl.VERL({**losing, "algorithm": {"adv_estimator": "grpo"}}).config
    assert config["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] == "gspo"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"failures": {"agent": "zero"}}, "failures.agent is 'zero'; expected exclude"),
        ({"rollout_timeout_seconds": 0}, "rollout_timeout_seconds must be above 0"),
        ({"failures": {"retries": 1.5}}, "failures.retries must be a whole number"),
        ({"resource_name": ""}, "resource_name must be a name"),
    ],
)
def test_wrong_options_are_refused(options, says):
    assert says in refused({}, **options)


def test_the_adapter_of_the_guide_reads_rows():
    trainer = agl.Trainer(algorithm=agl.VERL(GUIDE), adapter={"agent_match": "write"}, n_runners=1)
    assert isinstance(trainer.adapter, agl.TraceToRows)
    assert trainer.adapter.agent_match.pattern == "write"


@pytest.mark.parametrize("statement", ["import agl_verl", "import agl; agl.VERL({})"])
def test_nothing_heavy_is_imported_before_it_runs(statement):
    heavy = "verl, ray, torch, transformers, hydra"
    code = f"{statement}\nimport sys\nprint([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_verl_it_says_what_to_install():
    pytest.importorskip("packaging")
    from agl_verl.preflight import check_environment

    try:
        import verl  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("verl is installed")
    with pytest.raises(ConfigError, match="verl is not installed") as caught:
        check_environment()
    assert install_line("agl-verl[backend]") in str(caught.value)
