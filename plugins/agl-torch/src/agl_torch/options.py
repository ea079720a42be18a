"""How gradients are made, whichever algorithm makes them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from agl_learning.options import AboveZero, Count, NotNegative


@dataclass(kw_only=True)
class LearnerOptions:
    """How gradients are made.

    Args:
        epochs: Passes over a step's rows.
        minibatch_rows: Rows per gradient step; None takes all of them at once.
        microbatch_tokens: Tokens, padding included, per forward pass; gradients add up. None takes
            everything at once.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        clip_low: Ratios of probabilities count down to ``1 - clip_low``.
        clip_high: Ratios count up to ``1 + clip_high``.
        ratio_cap: Ratios of tokens with negative advantage, which neither of the two holds, count
            up to this (truncated importance weights, arXiv:1802.01561); with None only a
            ratio above e^20 is cut, to e^20, so that it stays a number.
        entropy_bonus: Reward for undecided tokens, per nat; keeps the model exploring.
        kl_coefficient: Penalty on the divergence from the start; 0 keeps no copy of the start.
        max_grad_norm: Longer gradients are shortened.
        temperature: At which the tokens were sampled.
        dtype: In which the model computes, ``float32`` or ``bfloat16``. Weights and optimiser are
            float32 in any case: steps of 1e-6 get lost in 16 bits.
    """

    epochs: Count = 1
    minibatch_rows: Count | None = None
    microbatch_tokens: Count | None = 32768
    learning_rate: NotNegative = 1e-6
    weight_decay: NotNegative = 0.0
    clip_low: Annotated[float, Ge(0), Lt(1)] = 0.2
    clip_high: NotNegative = 0.28
    ratio_cap: Annotated[float, Ge(1)] | None = 3.0
    entropy_bonus: NotNegative = 0.0
    kl_coefficient: NotNegative = 0.0
    max_grad_norm: AboveZero = 1.0
    temperature: AboveZero = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
