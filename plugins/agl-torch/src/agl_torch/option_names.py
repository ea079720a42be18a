"""Names that TRL, verl and others have for the options of trainers: a few are understood.

The others are refused with ours.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from agl.errors import UnknownArgumentError
from agl.plugins.schema import schema_of

OURS: dict[str, str] = {
    "actor_lr": "learning_rate",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adv_estimator": "estimator",
    "beta": "kl.coefficient",
    "bf16": "dtype",
    "clip_high": "clip.high",
    "clip_low": "clip.low",
    "clip_range": "clip",
    "clip_ratio": "clip",
    "clip_ratio_c": "clip.ratio_cap",
    "clip_ratio_high": "clip.high",
    "clip_ratio_low": "clip.low",
    "cliprange": "clip",
    "cliprange_value": "value_clip",
    "critic_lr": "critic_learning_rate",
    "delta": "clip.ratio_cap",
    "entropy_coef": "entropy_bonus",
    "entropy_coeff": "entropy_bonus",
    "epsilon": "clip",
    "epsilon_high": "clip.high",
    "epsilon_low": "clip.low",
    "eval_steps": "evaluation.every",
    "grad_clip": "optimizer.max_grad_norm",
    "init_kl_coef": "kl.coefficient",
    "kl_coef": "kl.coefficient",
    "kl_loss_coef": "kl.coefficient",
    "lam": "gae_lambda",
    "lora_alpha": "lora.alpha",
    "lora_r": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_target_modules": "lora.modules",
    "loss_agg_mode": "loss",
    "loss_mean": "loss",
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "lr_warmup_steps": "schedule.warmup_steps",
    "max_completion_length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "check_memory": "memory.check",
    "max_model_len": "server.max_model_tokens",
    "max_new_tokens": "max_tokens",
    "max_response_length": "max_tokens",
    "max_seq_length": "server.max_model_tokens",
    "max_steps": "steps",
    "norm_adv_by_std_in_grpo": "estimator.normalise_std",
    "normalise_std": "estimator.normalise_std",
    "num_generations": "group_size",
    "num_iterations": "epochs",
    "num_ppo_epochs": "epochs",
    "overlong_buffer": "overlong.buffer",
    "overlong_penalty": "overlong.penalty",
    "output_dir": "run_dir",
    "ppo_epochs": "epochs",
    "ppo_max_token_len_per_gpu": "memory.microbatch_tokens",
    "ppo_mini_batch_size": "minibatch_rows",
    "resume_from_checkpoint": "resume_from",
    "save_freq": "checkpoints.every",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep_last",
    "scale_rewards": "estimator.normalise_std",
    "target_kl": "kl.target",
    "target_modules": "lora.modules",
    "test_freq": "evaluation.every",
    "total_training_steps": "steps",
    "train_batch_size": "groups_per_step",
    "vf_coef": "value_coefficient",
    "vllm_importance_sampling_cap": "sampling_correction.cap",
    "vllm_importance_sampling_mode": "sampling_correction",
    "weight_decay": "optimizer.weight_decay",
}
"""Another trainer's name of an option -> ours."""

OWNERS: dict[str, str] = {
    **dict.fromkeys(("critic", "critic_learning_rate", "gae_lambda"), "ppo"),
    **dict.fromkeys(("value_clip", "value_coefficient"), "ppo"),
    **dict.fromkeys(("clip", "loss"), "grpo"),
    "estimator": "grpo",
    "gamma": "reinforce++",
    "teacher": "distillation",
}
"""An option that not all algorithms have -> one that has it."""

INSTEAD: dict[str, str] = {
    "gradient_accumulation_steps": (
        "gradients of a whole step add up, 'memory.microbatch_tokens' at once"
    ),
    "importance_sampling_level": "it is an algorithm of its own, 'gspo'",
    "learner_processes": "one process trains; for several GPUs take the algorithm 'verl'",
    "mask_truncated_completions": "give the adapter, as {type: rows, truncated: mask}",
    "num_train_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "per_device_train_batch_size": (
        "a step has 'groups_per_step' times 'group_size' rollouts, and one pass takes "
        "'memory.microbatch_tokens'"
    ),
    "reward_funcs": "the agent returns the reward, or emits it",
    "total_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "use_vllm": "set 'server' to 'vllm'",
    "vllm_importance_sampling_correction": "'sampling_correction' is on; 'none' turns it off",
}
"""Another trainer's name -> what to do here, where no one option is the same."""


def refuse_other_names(algorithm: Any, options: Iterable[str]) -> None:
    """Look at the names of options in Python, before the constructor does.

    Raises:
        UnknownArgumentError: One is another trainer's.
    """
    for option in options:
        if hint := explain(algorithm, option):
            raise UnknownArgumentError(f"{algorithm.__name__}: unknown option {option!r}.{hint}")


def explain(algorithm: Any, option: str) -> str:
    """What to say of an option that another trainer has; empty where it is one here."""
    if option not in INSTEAD and option not in OURS and option not in OWNERS:
        return ""
    known: Sequence[str] = [one.name for one in schema_of(algorithm).options]
    if option in known:
        return ""
    if option in INSTEAD:
        return f" Here {INSTEAD[option]}"
    ours = OURS.get(option, option)
    here = "" if ours == option else f" Here it is {ours!r}"
    if (group := ours.partition(".")[0]) in known:
        return here
    owner = f"an option of {OWNERS[group]!r}, and none of {algorithm.name!r}"
    return f"{here}, {owner}" if here else f" It is {owner}"
