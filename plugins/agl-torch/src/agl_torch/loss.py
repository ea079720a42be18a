"""What the losses of all algorithms share, as pure functions over sampled tokens.

With g_t what an algorithm gains from token t (see its module), the loss is

    L = sum_t w_t * c_t * (kl.coefficient * r_t * k3_t - g_t)
        - entropy_bonus * sum_t w_t * H_t / sum_t w_t

    k3_t = exp(d_t) - d_t - 1,  d_t = min(ref_t - new_t, 20),  r_t = exp(min(new_t - old_t, 20))

c_t is as ``sampling_correction`` says; and w_t depends on ``loss.type``, with N rollouts:

    grpo       1 / (sampled tokens of its rollout * N)
    dapo       1 / (sampled tokens of the batch)
    dr_grpo    1 / (constant * N)

Sources: the means are those of GRPO (arXiv:2402.03300), DAPO (arXiv:2503.14476) and Dr. GRPO
(arXiv:2503.20783); the estimator k3 of the KL divergence is from
http://joschu.net/blog/kl-approx.html, and r_t, with which its gradient is that of the divergence,
from DeepSeek-V3.2 (arXiv:2512.02556).

Where we differ from all of these:

1. A rollout may have several rows (sequences). Means are over rollouts, whatever their rows.
2. Tasks whose rollouts all have an advantage of 0 are left out instead of counting as zeros, so a
   step's size does not shrink as tasks are solved. Other calls with an advantage of 0 count in the
   means and the penalties. ``agl_learning.advantages.group_advantages`` says what equal means.
3. The entropy of the whole distribution at each sampled token may be rewarded.
4. A minibatch has the share of its rollouts in the step, so that its gradient is a mean too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from agl.errors import AlgorithmError

if TYPE_CHECKING:
    from torch import Tensor


MAX_LOG_RATIO = 20.0
"""Nats; a ratio of more than e^20 counts as that, and has no gradient. Without a bound it could
overflow, and one token would make all weights NaN."""


class Weight(NamedTuple):
    """Of one row."""

    token: float
    """w_t of each of its sampled tokens."""
    step_share: float
    """Which part of the step the row is; all add up to 1."""


def row_weights(
    rollout_ids: Sequence[str],
    num_sampled: Sequence[int],
    mean: str = "grpo",
    constant: int | None = None,
    left_out: Mapping[str, int] | None = None,
) -> list[Weight]:
    """Weights of rows' tokens in the loss.

    Args:
        rollout_ids: Per row, the rollout that it belongs to.
        num_sampled: Per row, how many of its tokens the model sampled.
        mean: A ``loss.type``; see above.
        constant: For ``dr_grpo``.
        left_out: Rollout -> sampled tokens that count in the means, and are in no row.
    """
    tokens = dict(left_out or {})
    for rollout_id, count in zip(rollout_ids, num_sampled, strict=True):
        tokens[rollout_id] = tokens.get(rollout_id, 0) + count
    weights: list[Weight] = []
    for rollout_id, count in zip(rollout_ids, num_sampled, strict=True):
        token = each = 1.0 / (tokens[rollout_id] * len(tokens))
        if mean == "dapo":
            token = each = 1.0 / sum(tokens.values())
        elif mean == "dr_grpo":
            token = 1.0 / ((constant or 1) * len(tokens))
        weights.append(Weight(token, each * count))
    whole = math.fsum(weight.step_share for weight in weights)
    return [weight._replace(step_share=weight.step_share / whole) for weight in weights]


class Tokens(NamedTuple):
    """The N sampled tokens of some rows, row after row."""

    logprobs_N: "Tensor"
    """Under the policy that is trained; carries the gradient."""
    old_logprobs_N: "Tensor"
    """Before the update."""
    advantages_N: "Tensor"
    counts: list[int]
    """Per row, how many of them it has."""

    @property
    def log_ratio_N(self) -> "Tensor":
        """Of each token, by how much likelier it is by now; nats."""
        return self.logprobs_N - self.old_logprobs_N

    def over_rows(self, values_N: "Tensor") -> tuple["Tensor", "Tensor"]:
        """Of each token, the sum over the tokens of its row, and the number of these."""
        parts = values_N.split(self.counts)
        sums_N = torch.cat([part.sum().expand_as(part) for part in parts])
        sizes = [float(count) for count in self.counts for _ in range(count)]
        return sums_N, torch.tensor(sizes, device=values_N.device)


class Gain(NamedTuple):
    """Per token what an algorithm makes as large as it can, and whether a bound held it."""

    gain_N: "Tensor"
    is_clipped_N: "Tensor"


def check_gain(given: object, count: int) -> None:
    """Refuse what a ``gain`` of one's own gives in the place of N gains.

    Raises:
        AlgorithmError: It is none, or one of another shape or without a gradient.
    """
    parts = given if isinstance(given, Gain) else ()
    if (
        not parts
        or not all(isinstance(one, torch.Tensor) and one.shape == (count,) for one in parts)
        or not parts[0].requires_grad
    ):
        got = [tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in parts]
        raise AlgorithmError(
            f"gain: expected Gain of two tensors of ({count},), a number and a bool for each "
            "sampled token, the first with a gradient; got "
            f"{f'Gain of {got}' if parts else type(given).__name__}"
        )


def clipped(
    log_ratio_N: "Tensor",
    advantages_N: "Tensor",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    ratio_cap: float | None = 3.0,
) -> Gain:
    """The clipped surrogate of PPO (arXiv:1707.06347).

    With r = exp(log ratio)

        min(r * A, clip(r, 1 - low, 1 + high) * A); where A < 0, with r of at most cap

    Where A < 0 the clip has no bound: a token that is e^12 times as likely as when it was sampled
    would drown the whole batch. Its ratio is truncated as importance weights are in IMPALA
    (arXiv:1802.01561): beyond the cap it counts as the cap, and the gradient is cap * A times that
    of the log-probability. The dual clip of arXiv:1912.09729 has no gradient there, so that bad
    tokens which had become likelier stay so: a run of the quickstart ended at a held-out reward of
    0.88 with it, and at 1 with this.
    """
    ratio_N = log_ratio_N.clamp(max=MAX_LOG_RATIO).exp()
    over_N = torch.zeros_like(ratio_N, dtype=torch.bool)
    if ratio_cap is not None:
        over_N = (advantages_N < 0) & (ratio_N > ratio_cap)
        # The second factor is 1, and has the gradient of the log-probability.
        capped_N = ratio_cap * (log_ratio_N - log_ratio_N.detach()).exp()
        ratio_N = torch.where(over_N, capped_N, ratio_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    plain_N, bounded_N = ratio_N * advantages_N, clipped_N * advantages_N
    return Gain(torch.minimum(plain_N, bounded_N), (bounded_N < plain_N) | over_N)


class PolicyLoss(NamedTuple):
    """The loss, which has a gradient, and what it is made of, which has none."""

    total: "Tensor"
    policy: "Tensor"
    """The gain alone, negative."""
    entropy: "Tensor"
    """Weighted mean, nats per token."""
    kl: "Tensor"
    """Weighted mean of k3 against the reference; 0 without one."""
    clip_fraction: "Tensor"
    """Weight of the tokens that a bound held: no gradient, or no larger one."""


def policy_loss(
    gain: Gain,
    logprobs_N: "Tensor",
    weights_N: "Tensor",
    *,
    scale: float = 1.0,
    entropy_N: "Tensor | None" = None,
    entropy_bonus: float = 0.0,
    reference_logprobs_N: "Tensor | None" = None,
    kl_coefficient: float = 0.0,
    old_logprobs_N: "Tensor | None" = None,
    correction_N: "Tensor | None" = None,
) -> PolicyLoss:
    """Over N sampled tokens, from any number of rows.

    Args:
        gain: Of an algorithm.
        logprobs_N: Under the policy that is trained; carries the gradient.
        weights_N: Shares of the tokens in their minibatch; of all of it they add up to 1.
        scale: What the weights w_t of the minibatch add up to.
        entropy_N: Of the distribution that each token was drawn from, with gradient.
        entropy_bonus: How much of it is subtracted from the loss.
        reference_logprobs_N: Under the frozen start.
        kl_coefficient: How much of the divergence from it is added to the loss.
        old_logprobs_N: Before the update; None takes those of now.
        correction_N: How often a token counts, gain and divergence; see ``sampling_correction``.
    """
    counted_N = weights_N if correction_N is None else weights_N * correction_N
    policy = -scale * (counted_N * gain.gain_N).sum()
    total = policy
    entropy = kl = logprobs_N.new_zeros(())
    if entropy_N is not None:
        entropy = (weights_N * entropy_N).sum()
        total = total - entropy_bonus * entropy
    if reference_logprobs_N is not None:
        gap_N = (reference_logprobs_N - logprobs_N).clamp(max=MAX_LOG_RATIO)
        k3_N = gap_N.exp() - gap_N - 1
        kl = (weights_N * k3_N).sum()
        old_N = logprobs_N.detach() if old_logprobs_N is None else old_logprobs_N
        ratio_N = (logprobs_N - old_N).clamp(max=MAX_LOG_RATIO).exp()
        ratio_N = torch.where(gap_N < MAX_LOG_RATIO, ratio_N, ratio_N.detach())
        total = total + scale * kl_coefficient * (counted_N * ratio_N * k3_N).sum()
    clip_fraction = (weights_N * gain.is_clipped_N).sum() / weights_N.sum().clamp(min=1e-9)
    return PolicyLoss(total, policy.detach(), entropy.detach(), kl.detach(), clip_fraction.detach())


def next_coefficient(coefficient: float, kl: float, target: float) -> float:
    """The penalty's coefficient after an update in which the divergence was ``kl``.

    Source: Ziegler et al. (arXiv:1909.08593), 2.2: the gain is 0.1, and the divergence counts as
    at most 20 % off its target.

    Example:
        With target 0.1 and a divergence of 0.11, 10 % too much: the coefficient grows by 1 %. At a
        divergence of 5 it grows by 2 %, and at 0 it shrinks by 2 %.
    """
    return coefficient * (1 + 0.1 * min(max(kl / target - 1, -0.2), 0.2))
