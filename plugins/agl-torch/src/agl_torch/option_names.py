"""Names that TRL, verl and others have for the options of trainers: a few are understood.

The others are refused with ours.
"""

from collections.abc import Sequence
from typing import Any

from agl.plugins.schema import schema_of

OTHERS: dict[str, tuple[str, ...]] = {
    "checkpoints.every": ("save_freq", "save_steps"),
    "checkpoints.keep_last": ("save_total_limit",),
    "clip": ("clip_range", "clip_ratio", "cliprange", "epsilon"),
    "clip.high": ("clip_high", "clip_ratio_high", "epsilon_high"),
    "clip.low": ("clip_low", "clip_ratio_low", "epsilon_low"),
    "clip.ratio_cap": ("clip_ratio_c", "delta"),
    "critic_learning_rate": ("critic_lr",),
    "dtype": ("bf16",),
    "entropy_bonus": ("entropy_coef", "entropy_coeff"),
    "epochs": ("num_iterations", "num_ppo_epochs", "ppo_epochs"),
    "estimator": ("adv_estimator",),
    "estimator.normalise_std": ("norm_adv_by_std_in_grpo", "normalise_std", "scale_rewards"),
    "evaluation.every": ("eval_steps", "test_freq"),
    "gae_lambda": ("lam",),
    "group_size": ("num_generations", "rollout_n"),
    "groups_per_step": ("train_batch_size",),
    "kl.coefficient": ("beta", "init_kl_coef", "kl_coef", "kl_loss_coef"),
    "kl.target": ("target_kl",),
    "learning_rate": ("actor_lr", "lr"),
    "lora.alpha": ("lora_alpha",),
    "lora.modules": ("lora_target_modules", "target_modules"),
    "lora.rank": ("lora_r", "lora_rank"),
    "loss": ("loss_agg_mode", "loss_mean", "loss_type"),
    "max_tokens": (
        "max_completion_length",
        "max_completion_tokens",
        "max_new_tokens",
        "max_response_length",
    ),
    "memory.check": ("check_memory",),
    "memory.gradient_checkpointing": ("gradient_checkpointing",),
    "memory.microbatch_tokens": ("ppo_max_token_len_per_gpu",),
    "minibatch_rows": ("ppo_mini_batch_size",),
    "optimizer.beta1": ("adam_beta1",),
    "optimizer.beta2": ("adam_beta2",),
    "optimizer.max_grad_norm": ("grad_clip", "max_grad_norm"),
    "optimizer.weight_decay": ("weight_decay",),
    "overlong.buffer": ("overlong_buffer",),
    "overlong.penalty": ("overlong_penalty",),
    "resume_from": ("resume_from_checkpoint",),
    "run_dir": ("output_dir",),
    "sampling_correction": ("vllm_importance_sampling_mode",),
    "sampling_correction.cap": ("vllm_importance_sampling_cap",),
    "schedule": ("lr_scheduler_type",),
    "schedule.warmup_steps": ("lr_warmup_steps", "warmup_steps"),
    "server.max_model_tokens": ("max_model_len", "max_seq_length"),
    "steps": ("max_steps", "total_training_steps"),
    "value_clip": ("cliprange_value",),
    "value_coefficient": ("vf_coef",),
}
"""Our name of an option -> those that other trainers have for it."""
OURS = {other: ours for ours, others in OTHERS.items() for other in others}

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
    "eval_strategy": "give 'evaluation.every', and the run validation tasks",
    **dict.fromkeys(
        ("generation_batch_size", "steps_per_generation"),
        "'epochs' and 'minibatch_rows' take several optimizer steps per step",
    ),
    "gradient_accumulation_steps": (
        "gradients of a whole step add up, 'memory.microbatch_tokens' at once"
    ),
    "importance_sampling_level": "it is an algorithm of its own, 'gspo'",
    "load_best_model_at_end": "'checkpoints.keep_last' keeps the best one by held-out reward, too",
    "logging_steps": "every step is logged",
    "lora_dropout": "adapters drop nothing, so that weights sample and train alike",
    "learner_processes": "one process trains; for several GPUs take the algorithm 'verl'",
    "mask_truncated_completions": "give the adapter, as {type: rows, truncated: mask}",
    "max_prompt_length": "no prompt is cut; 'server.max_model_tokens' is for prompt and answer",
    "num_train_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "per_device_train_batch_size": (
        "a step has 'groups_per_step' times 'group_size' rollouts, and one pass takes "
        "'memory.microbatch_tokens'"
    ),
    "report_to": "trackers are hooks of the run: hooks: [{type: wandb}]",
    "reward_funcs": "the agent returns the reward, or emits it",
    "reward_weights": "with the estimator 'gdpo', 'estimator.rewards' has them",
    "run_name": "a run has the name of its folder, 'run_dir'",
    "shuffle_dataset": "'task_order' says in which order tasks come",
    **dict.fromkeys(("top_k", "top_p"), "all tokens can be sampled, as that is what is trained"),
    "total_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "use_kl_loss": "'kl.coefficient' above 0 adds the penalty",
    "use_peft": "'lora' trains an adapter",
    "use_vllm": "set 'server' to 'vllm'",
    "val_before_train": "validation tasks are run before the first step, too",
    "vllm_importance_sampling_correction": "'sampling_correction' is on; 'none' turns it off",
    "warmup_ratio": "give 'schedule.warmup_steps', a number of steps",
}
"""Another trainer's name -> what to do here, where no one option is the same."""


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
