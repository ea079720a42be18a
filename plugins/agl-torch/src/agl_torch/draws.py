"""From logits to tokens: what is drawn from, and the draw."""

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LOWEST_TEMPERATURE = 1e-5
"""Below it, as at 0, the most probable token is taken: logits divided by less overflow."""

CHANCES = (2**-54, 1 - 2**-24)  # within 0 and 1, to which float32 rounds none of them


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
        ``log_softmax(logits / temperature)`` over what is allowed, and what ``draw`` takes.
    """
    if allowed_B_V is not None:
        logits_B_V = logits_B_V.masked_fill(~allowed_B_V, -torch.inf)
    greedy_B = temperature_B < LOWEST_TEMPERATURE
    scale_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B)
    logprobs_B_V = torch.log_softmax(logits_B_V.float() / scale_B[:, None], dim=-1)
    draw_B_V = logprobs_B_V.exp()
    if bool((top_p_B < 1).any()):
        sorted_B_V, order_B_V = draw_B_V.double().sort(dim=-1, descending=True)
        before_B_V = sorted_B_V.cumsum(-1) - sorted_B_V
        # By rounding, it may reach 1 before the end: who asked for everything keeps everything.
        limit_B = torch.where(top_p_B < 1, top_p_B, torch.inf)
        sorted_B_V[before_B_V >= limit_B[:, None]] = 0
        draw_B_V = torch.zeros_like(draw_B_V).scatter_(1, order_B_V, sorted_B_V.float())
    if bool(greedy_B.any()):
        best_B_1 = logits_B_V.argmax(-1, keepdim=True)
        draw_B_V[greedy_B] = torch.zeros_like(draw_B_V).scatter_(1, best_B_1, 1.0)[greedy_B]
    return logprobs_B_V, draw_B_V


def draw(weights_B_V: "Tensor", chance_B_V: "Tensor") -> "Tensor":
    """One index per row, with a probability in proportion to its weight.

    Args:
        weights_B_V: Not negative; zeros are never drawn.
        chance_B_V: Independent, each uniformly distributed over ``CHANCES``, in double precision.

    Which it is changes with the weights only where two are about equally near to being drawn. A
    uniform number looked up in cumulated weights would be nearer by all that their rounding adds up
    to: with 8,192 tokens one draw in 400 was another in another batch.
    """
    # Times until events of these rates; what comes first has a chance near 0, which float32 keeps.
    return (weights_B_V / chance_B_V.float().neg_().log1p_().neg_()).argmax(-1)


def generator(seed: str | int, device: "torch.device") -> "torch.Generator":
    """Random numbers that follow from a seed of a request."""
    digest = hashlib.sha256(f"{type(seed).__name__}:{seed}".encode()).digest()
    made = torch.Generator(device)
    made.manual_seed(int.from_bytes(digest[:7]))
    return made
