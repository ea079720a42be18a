"""Names that TRL, verl and others have for the options of trainers: a few are understood.

The others are refused with ours.
"""

from collections.abc import Sequence
from typing import Any

from agl.errors import ConfigError, UnknownArgumentError
from agl.plugins.schema import schema_of

OURS: dict[str, str] = {
    "adv_estimator": "estimator",
    "beta": "kl_coefficient",
    "bf16": "dtype",
    "clip_ratio": "clip_range",
    "clip_ratio_c": "ratio_cap",
    "clip_ratio_high": "clip_high",
    "clip_ratio_low": "clip_low",
    "cliprange": "clip_range",
    "cliprange_value": "value_clip",
    "delta": "ratio_cap",
    "entropy_coeff": "entropy_bonus",
    "epsilon": "clip_range",
    "epsilon_high": "clip_high",
    "epsilon_low": "clip_low",
    "eval_steps": "eval_every",
    "grad_clip": "max_grad_norm",
    "init_kl_coef": "kl_coefficient",
    "kl_loss_coef": "kl_coefficient",
    "lam": "gae_lambda",
    "lora_r": "lora_rank",
    "lora_target_modules": "lora_modules",
    "loss_agg_mode": "loss_type",
    "loss_mean": "loss_type",
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "lr_warmup_steps": "warmup_steps",
    "max_completion_length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_model_len": "max_model_tokens",
    "max_new_tokens": "max_tokens",
    "max_response_length": "max_tokens",
    "max_seq_length": "max_model_tokens",
    "max_steps": "steps",
    "norm_adv_by_std_in_grpo": "normalise_std",
    "num_generations": "group_size",
    "num_iterations": "epochs",
    "num_ppo_epochs": "epochs",
    "output_dir": "run_dir",
    "ppo_epochs": "epochs",
    "ppo_max_token_len_per_gpu": "microbatch_tokens",
    "ppo_mini_batch_size": "minibatch_rows",
    "resume_from_checkpoint": "resume_from",
    "save_freq": "checkpoint_every",
    "save_steps": "checkpoint_every",
    "save_total_limit": "keep_last",
    "scale_rewards": "normalise_std",
    "target_kl": "kl_target",
    "target_modules": "lora_modules",
    "test_freq": "eval_every",
    "total_training_steps": "steps",
    "train_batch_size": "groups_per_step",
    "vf_coef": "value_coefficient",
    "vllm_importance_sampling_cap": "sampling_correction_cap",
    "vllm_importance_sampling_mode": "sampling_correction",
}
"""Another trainer's name of an option -> ours."""

OWNERS: dict[str, str] = {
    **dict.fromkeys(("critic", "critic_learning_rate", "gae_lambda"), "ppo"),
    **dict.fromkeys(("value_clip", "value_coefficient"), "ppo"),
    **dict.fromkeys(("clip_range", "clip_low", "clip_high", "ratio_cap", "loss_type"), "grpo"),
    **dict.fromkeys(("estimator", "normalise_std", "reward_keys", "reward_weights"), "grpo"),
    "gamma": "reinforce++",
    "teacher": "distillation",
}
"""An option that not all algorithms have -> one that has it."""

INSTEAD: dict[str, str] = {
    "gradient_accumulation_steps": "gradients of a whole step add up, 'microbatch_tokens' at once",
    "importance_sampling_level": "it is an algorithm of its own, 'gspo'",
    "learner_processes": "one process trains; for several GPUs take the algorithm 'verl'",
    "mask_truncated_completions": "give the adapter, as {type: rows, truncated: mask}",
    "num_train_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "per_device_train_batch_size": (
        "a step has 'groups_per_step' times 'group_size' rollouts, and one pass takes "
        "'microbatch_tokens'"
    ),
    "reward_funcs": "the agent returns the reward, or emits it",
    "total_epochs": "a run is as long as its 'steps', each of 'groups_per_step' tasks",
    "use_vllm": "set 'server' to 'vllm'",
    "vllm_importance_sampling_correction": "'sampling_correction' is on; 'none' turns it off",
}
"""Another trainer's name -> what to do here, where no one option is the same."""


UNDERSTOOD = {
    "kl_coef": ("kl_coefficient",),
    "entropy_coef": ("entropy_bonus",),
    "clip_range": ("clip_low", "clip_high"),
    "actor_lr": ("learning_rate",),
    "critic_lr": ("critic_learning_rate",),
}
"""Another trainer's name that is an option here -> ours, which get what it is given."""


class OptionNames:
    """A trainer that refuses other trainers' names of its options with its own, or takes them.

    For names in a file (``explain_option``, which ``agl.plugins.schema`` asks) and in Python.
    """

    name: Any
    """Of the algorithm."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Look at the names, before the constructor does.

        Raises:
            ConfigError: One was given under ours, too.
            UnknownArgumentError: One is another trainer's.
        """
        for name, ours in UNDERSTOOD.items():
            twice = [one for one in ours if one in options]
            if twice and options.get(name) is not None:
                given = {one: options[one] for one in (name, *twice)}
                raise ConfigError(
                    f"{cls.__name__}: {name} is another name of {' and '.join(ours)}; got "
                    f"{', '.join(f'{one}={value}' for one, value in given.items())}. Leave one of "
                    "the names out"
                )
        for option in options:
            if hint := cls.explain_option(option):
                raise UnknownArgumentError(f"{cls.__name__}: unknown option {option!r}.{hint}")
        return super().__new__(cls)

    @classmethod
    def explain_option(cls, option: str) -> str:
        """What to say of an option that another trainer has; empty where it is one here."""
        if option not in INSTEAD and option not in OURS and option not in OWNERS:
            return ""
        known: Sequence[str] = [one.name for one in schema_of(cls).options]
        if option in known:
            return ""
        if option in INSTEAD:
            return f" Here {INSTEAD[option]}"
        ours = OURS.get(option, option)
        here = "" if ours == option else f" Here it is {ours!r}"
        if ours in known:
            return here
        owner = f"an option of {OWNERS[ours]!r}, and none of {cls.name!r}"
        return f"{here}, {owner}" if here else f" It is {owner}"


def take_other_names(options: Any) -> None:
    """Have what was given under another name under ours, so that a run is described by these."""
    for name, ours in UNDERSTOOD.items():
        if (value := getattr(options, name, None)) is not None:
            for one in ours:
                setattr(options, one, value)
            setattr(options, name, None)
