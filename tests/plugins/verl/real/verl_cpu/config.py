"""All that verl must be told to train on a CPU: ``cpu_config`` and ``use_cpu``."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

PLATFORM = "agl_cpu"
"""The name of the platform, for ``VERL_PLATFORM``."""
INFERENCE = "agl_cpu"
"""The name of the inference server, for ``rollout.name``."""
CHECKPOINT_ENGINE = "agl_ray_store"
"""The name of the way of the weights, for ``rollout.checkpoint_engine.backend``."""
PLUGIN = "verl_cpu.plugin"
"""What verl imports, for ``VERL_USE_EXTERNAL_MODULES``."""


def use_cpu() -> None:
    """Choose the CPU for verl, in this process and those that it starts, by environment variables.

    Call it before verl is imported: verl decides on its device once, at import. Unless they are
    set, Ray's statistics are switched off and a process gets one thread (a run is a dozen of
    processes, and the model is tiny).

    Raises:
        RuntimeError: verl was imported before.
    """
    if "verl" in sys.modules and PLUGIN not in sys.modules:
        raise RuntimeError(
            "verl was imported before use_cpu(), and has chosen its device; call use_cpu() first"
        )
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    named = dict.fromkeys([*filter(None, modules), PLUGIN])
    os.environ["VERL_USE_EXTERNAL_MODULES"] = ",".join(named)
    here = str(Path(__file__).resolve().parents[1])  # Ray's processes import it from there
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([here, *filter(None, paths)]))
    os.environ["VERL_PLATFORM"] = PLATFORM
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def cpu_config(
    model: str | Path,
    *,
    mode: Literal["sync", "colocate_async", "separate_async"] = "sync",
    ranks: int = 1,
    prompts_per_step: int = 4,
    rollouts_per_prompt: int = 4,
    max_prompt_length: int = 256,
    max_response_length: int = 12,
    critic: bool = False,
    reference: bool = False,
    learning_rate: float = 3e-3,
    **overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """A whole set of verl settings for a tiny model on a CPU, by verl's own keys.

    Args:
        model: A folder, for example from ``agl_testing.tiny_model``.
        mode: Which of verl's trainers; ``separate_async`` has its inference server apart, and
            updates its weights every second mini-batch.
        ranks: Training processes; 2 try sharding.
        prompts_per_step: Of one mini-batch; a step of ``separate_async`` has two.
        rollouts_per_prompt: The group size.
        max_prompt_length: Tokens; of several turns, all but the last answer.
        max_response_length: Tokens of one answer.
        critic: Settings of a value model too, for ``algorithm={"adv_estimator": "gae"}``.
        reference: Settings of a reference policy too; the KL term in the loss is switched on.
        learning_rate: Of the policy.
        **overrides: Sections of verl's configuration that are laid over the rest, for example
            ``trainer={"total_training_steps": 3}``; mappings merge, other values replace.

    Returns:
        Nested dictionaries of plain values.
    """
    lengths = {"max_prompt_length": max_prompt_length, "max_response_length": max_response_length}
    separate = mode == "separate_async"
    prompts = prompts_per_step * (2 if separate else 1)
    batches = {"ppo_mini_batch_size": prompts_per_step, "ppo_micro_batch_size_per_gpu": 8}
    actor = {"optim": {"lr": learning_rate}, "use_torch_compile": False, **batches}
    rollout = {
        **{"name": INFERENCE, "n": rollouts_per_prompt, "load_format": "auto"},
        **{"tensor_model_parallel_size": 1, "log_prob_micro_batch_size_per_gpu": 8},
        **{"max_model_len": sum(lengths.values()), "calculate_log_probs": True},
        "agent": {"num_workers": 1},
    }
    config: dict[str, Any] = {
        "data": {"train_batch_size": prompts, "dataloader_num_workers": 0, **lengths},
        "actor_rollout_ref": {
            "hybrid_engine": not separate,
            "model": _model(model),
            "actor": {**_engine("fsdp_config"), **actor},
            "rollout": rollout,
        },
        "algorithm": {"adv_estimator": "grpo"},
        # Rewards come with rollouts. verl's own agent loops want at least one of these processes.
        "reward": {"num_workers": 0},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "trainer": {
            **{"device": "cpu", "n_gpus_per_node": ranks, "nnodes": 1, "logger": ["console"]},
            **{"val_before_train": False, "test_freq": -1, "save_freq": -1},
            **{"resume_mode": "disable", "v1": {"trainer_mode": mode}},
        },
    }
    # A declaration: with too few, Ray waits for ever without a word. verl wants three per rank, two
    # per server that is apart; the task runner, the queue, the reward worker and the load balancer
    # have one each; and some to spare.
    has = {"num_cpus": 3 * ranks + 2 * separate + 8, "num_gpus": ranks + separate}
    has |= {"include_dashboard": False, "object_store_memory": 300_000_000}
    config["ray_kwargs"] = {"ray_init": has}
    if separate:
        apart = {"nnodes": 1, "n_gpus_per_node": 1}
        rollout |= {**apart, "checkpoint_engine": {"backend": CHECKPOINT_ENGINE}}
        config["trainer"]["v1"]["separate_async"] = {"parameter_sync_step": 2}
    if critic:
        optim = {"lr": learning_rate / 3}
        config["critic"] = {**_engine("fsdp"), "model": _model(model), "optim": optim, **batches}
    if reference:
        config["actor_rollout_ref"]["actor"]["use_kl_loss"] = True
        micro = {"log_prob_micro_batch_size_per_gpu": 8}
        config["actor_rollout_ref"]["ref"] = {**_engine("fsdp_config"), **micro}
    return _merge(config, overrides)


def _merge(config: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``over`` on ``config``, in place: mappings merge, other values replace."""
    for key, value in over.items():
        is_section = isinstance(value, Mapping) and isinstance(config.get(key), dict)
        config[key] = _merge(config[key], value) if is_section else value
    return config


def _model(model: str | Path) -> dict[str, Any]:
    return {
        "path": str(model),
        "use_remove_padding": False,  # needs flash attention
        "enable_gradient_checkpointing": False,
        "override_config": {"attn_implementation": "sdpa"},
    }


def _engine(key: str) -> dict[str, Any]:
    """FSDP2 (FSDP1 cannot work on a CPU), single precision, nothing compiled."""
    single = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = {"strategy": "fsdp2", "use_torch_compile": False, "mixed_precision": single}
    # A forward-only engine, as the reference policy's, would be bf16.
    return {"strategy": "fsdp2", key: {**engine, "model_dtype": "fp32"}}
