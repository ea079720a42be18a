"""How gradients are made: what algorithms share, each taking the parts that do something in it."""

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from agl.errors import ConfigError
from agl_records.options import AboveZero, Count, NotNegative
from agl_torch.adapter import need

logger = logging.getLogger("agl.torch")
LossType = Literal["dapo", "grpo", "dr_grpo"]


@dataclass(kw_only=True)
class LearnerOptions:
    """How gradients are made.

    Args:
        epochs: Passes over a step's rows.
        minibatch_rows: Rows per gradient step; None takes all of them at once.
        microbatch_tokens: Tokens, padding included, per forward pass; gradients add up. What rows
            begin with alike counts once. ``auto`` is 2048 on a GPU; on a CPU, where more is no
            faster, 512, or up to 2048 in a line whose rows share a long prompt. None takes
            everything at once.
        learning_rate: Of AdamW.
        optimizer: ``adamw``, whose states take 8 bytes per weight, or ``adamw_8bit``: torchao's,
            whose states take 2 (arXiv:2110.02861). Needs ``agl-torch[8bit]``.
        adam_beta1: How much of the mean gradient AdamW keeps from one gradient step to the next.
        adam_beta2: Likewise of the mean squared gradient.
        weight_decay: Of AdamW, for matrices; norms and biases do not decay.
        schedule: What becomes of the learning rate after the warm-up, until the last of ``steps``:
            it stays, or falls to 0 in a line or half a wave.
        warmup_steps: The learning rate rises in a line over so many updates.
        entropy_bonus: Reward for undecided tokens, per nat; keeps the model exploring.
        kl_coefficient: Penalty on the divergence from the start; 0 keeps no copy of the start.
        kl_target: Nats per token; after each update the coefficient grows or shrinks, by at most
            2 %, to bring the divergence there (arXiv:1909.08593). None keeps it as it is.
        max_grad_norm: Longer gradients are shortened.
        temperature: At which the tokens were sampled.
        sampling_correction: What the update makes of a mismatch: the trainer computes the
            log-probabilities of sampled tokens before the update, and d is how much larger they are
            than those the sampler recorded. With ``sequence_mask`` a row counts e^(sum of d) times,
            and not at all above the cap. With ``token_truncate`` a token counts e^d times, at most
            as often as the cap says; tokens that older weights sampled (``max_staleness``) count
            so with either value (arXiv:2505.24298). ``none`` changes no weight, and compares the
            update with the recorded log-probabilities instead of the trainer's own.
        sampling_correction_cap: For the first two of these.
        dtype: In which the model computes: ``bfloat16``, the default on a GPU that has it, or
            ``float32``. Weights are float32 in any case: steps of 1e-6 get lost in 16 bits. vLLM
            and SGLang sample in ``bfloat16`` unless this says ``float32``.
        gradient_checkpointing: Of each layer, keep what it was given alone, and compute the rest
            again where gradients need it: a third more time, and much less memory.
        lora_rank: Train an adapter of this rank instead of the model (LoRA, arXiv:2106.09685); it
            is what checkpoints have. It wants about ten times the learning rate. Needs
            ``agl-torch[lora]``.
        lora_alpha: What the adapter adds counts ``lora_alpha / lora_rank`` times; None takes twice
            the rank.
        lora_modules: Names of the layers that get one, or the last parts of them, as ``q_proj``;
            None takes all linear ones but the output layer.
        kl_coef: Another name of ``kl_coefficient``.
        entropy_coef: Another name of ``entropy_bonus``.
    """

    epochs: Count = 1
    minibatch_rows: Count | None = None
    microbatch_tokens: Count | Literal["auto"] | None = "auto"
    learning_rate: NotNegative = 1e-6
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    adam_beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    weight_decay: NotNegative = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Ge(0)] = 0
    entropy_bonus: NotNegative = 0.0
    kl_coefficient: NotNegative = 0.0
    kl_target: AboveZero | None = None
    max_grad_norm: AboveZero = 1.0
    temperature: AboveZero = 1.0
    sampling_correction: Literal["sequence_mask", "token_truncate", "none"] = "sequence_mask"
    sampling_correction_cap: Annotated[float, Ge(1)] = 3.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False
    lora_rank: Count | None = None
    lora_alpha: AboveZero | None = None
    lora_modules: list[str] | None = None
    kl_coef: NotNegative | None = None
    entropy_coef: NotNegative | None = None


@dataclass(kw_only=True)
class ClipOptions:
    """How far a ratio of probabilities counts.

    Args:
        clip_low: Ratios of probabilities, to those before an update, count down to
            ``1 - clip_low``. With one gradient step an update, they are 1.
        clip_high: Ratios count up to ``1 + clip_high``.
        ratio_cap: Ratios of tokens with negative advantage, which neither of the two holds, count
            up to this (truncated importance weights, arXiv:1802.01561); with None only a
            ratio above e^20 is cut, to e^20, so that it stays a number.
        clip_range: Another name of ``clip_low`` and ``clip_high``, for both.
    """

    clip_low: Annotated[float, Ge(0), Lt(1)] = 0.2
    clip_high: NotNegative = 0.28
    ratio_cap: Annotated[float, Ge(1)] | None = 3.0
    clip_range: Annotated[float, Ge(0), Lt(1)] | None = None


@dataclass(kw_only=True)
class MeanOptions:
    """What the tokens of a step weigh in the loss.

    Args:
        loss_type: ``dapo``: all tokens weigh the same. ``grpo``: rollouts weigh the same, tokens
            of one equally. ``dr_grpo``: the tokens of a rollout are summed up and divided by
            ``loss_constant``.
        loss_constant: Tokens, for the last of these; as a rule ``max_tokens``.
    """

    loss_type: LossType = "dapo"
    loss_constant: Count | None = None


def check_learner(owner: str, options: Any) -> None:
    """Refuse options that would do nothing beside the others.

    Args:
        owner: Whose they are.
        options: Those of this module that it has, and ``steps``.

    Raises:
        ConfigError: It names the option, and what it would need.
    """
    if options.kl_target is not None and not options.kl_coefficient:
        raise ConfigError(
            f"{owner}: kl_target changes kl_coefficient, and that is 0. Give kl_coefficient, from "
            "which it begins"
        )
    if options.warmup_steps >= options.steps and options.warmup_steps > 0:
        raise ConfigError(
            f"{owner}: warmup_steps is {options.warmup_steps}, and the run has {options.steps} "
            "steps; the learning rate would not be reached. Give fewer"
        )
    if options.lora_rank is not None:
        need(f"{owner}: lora_rank", "peft", "lora")
    if options.optimizer == "adamw_8bit":
        need(f"{owner}: optimizer 'adamw_8bit'", "torchao", "8bit")
    for name in ("lora_alpha", "lora_modules"):
        if options.lora_rank is None and getattr(options, name) is not None:
            raise ConfigError(f"{owner}: {name} is of an adapter; give lora_rank, or leave it out")
    default = type(options)
    changed = [
        name
        for name in ("clip_low", "clip_high", "clip_range", "ratio_cap")
        if getattr(options, name, None) != getattr(default, name, None)
    ]
    is_first = options.epochs == 1 and options.minibatch_rows is None
    if changed and is_first and options.sampling_correction != "none":
        logger.warning(
            "%s: %s bounds how far the steps of an update go from where it began. With epochs=1 "
            "and no minibatch_rows it has one, which begins there: only answers held to a form "
            "are bounded",
            owner,
            changed[0],
        )
    if options.sampling_correction == "none" and (
        options.sampling_correction_cap != default.sampling_correction_cap
    ):
        raise ConfigError(
            f"{owner}: sampling_correction_cap is of a correction, and sampling_correction is "
            "'none'. Leave one out"
        )
    mean, constant = getattr(options, "loss_type", None), getattr(options, "loss_constant", None)
    if (mean == "dr_grpo") != (constant is not None):
        raise ConfigError(
            f"{owner}: loss_constant goes with loss_type='dr_grpo', and only with it; got "
            f"loss_type={mean!r} and loss_constant={constant!r}"
        )
