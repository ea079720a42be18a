"""From logits to tokens: what is drawn from, and the draw."""

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LOWEST_TEMPERATURE = 1e-5
"""Below it, as at 0, the most probable token is taken: logits divided by less overflow."""


def sampling_distribution(
    logits_B_V: "Tensor",
    temperature_B: "Tensor",
    top_p_B: "Tensor",
    allowed_B_V: "Tensor | None" = None,
) -> tuple["Tensor", "Tensor"]:
    """Log-probabilities of the policy, and the probabilities to draw from.

    Args:
        logits_B_V: The model's output.
        temperature_B: Per row; below ``LOWEST_TEMPERATURE`` all mass is on the most probable token.
        top_p_B: Per row; the smallest set of most probable tokens with at least this mass is kept.
        allowed_B_V: What may be drawn; None is everything.

    Returns:
        ``log_softmax(logits / temperature)`` over what is allowed, and unnormalised probabilities
        whose zeros are never drawn; both B x V, the second one in double precision.
    """
    if allowed_B_V is not None:
        logits_B_V = logits_B_V.masked_fill(~allowed_B_V, -torch.inf)
    greedy_B = temperature_B < LOWEST_TEMPERATURE
    scale_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B)
    logprobs_B_V = torch.log_softmax(logits_B_V.float() / scale_B[:, None], dim=-1)
    draw_B_V = logprobs_B_V.double().exp()
    if bool((top_p_B < 1).any()):
        sorted_B_V, order_B_V = draw_B_V.sort(dim=-1, descending=True)
        before_B_V = sorted_B_V.cumsum(-1) - sorted_B_V
        # By rounding, it may reach 1 before the end: who asked for everything keeps everything.
        limit_B = torch.where(top_p_B < 1, top_p_B, torch.inf)
        sorted_B_V[before_B_V >= limit_B[:, None]] = 0
        draw_B_V = torch.zeros_like(draw_B_V).scatter_(1, order_B_V, sorted_B_V)
    if bool(greedy_B.any()):
        best_B = logits_B_V.argmax(-1)
        draw_B_V[greedy_B] = torch.nn.functional.one_hot(
            best_B[greedy_B], logits_B_V.shape[-1]
        ).double()
    return logprobs_B_V, draw_B_V


def draw(weights_B_V: "Tensor", noise_B_V: "Tensor") -> "Tensor":
    """One index per row, with a probability in proportion to its weight.

    Args:
        weights_B_V: Not negative; zeros are never drawn.
        noise_B_V: Independent, each exponentially distributed with mean 1.

    Which it is changes with the weights only where two are about equally near to being drawn. Where
    a uniform number is looked up in cumulated weights, each boundary moves by what the rounding of
    all before it adds up to: with 8,192 tokens one draw in 400 was another in another batch.
    """
    return (weights_B_V / noise_B_V).argmax(-1)


def generator(seed: str | int, device: "torch.device") -> "torch.Generator":
    """Random numbers that follow from a seed of a request."""
    digest = hashlib.sha256(f"{type(seed).__name__}:{seed}".encode()).digest()
    made = torch.Generator(device)
    made.manual_seed(int.from_bytes(digest[:7]))
    return made
