"""``GRPO``: rollouts of one task against each other, token by token.

For a task with G rollouts of rewards R_i, every sampled token t of rollout i has the advantage
A_i = (R_i - mean(R)) / (std(R) + 1e-6), or that of another ``estimator``, and with
r_t = exp(new_t - old_t) what it gains is

    g_t = min(r_t * A, clip(r_t, 1 - low, 1 + high) * A); where A < 0, with r_t of at most cap

Its kin are options of it: with its mean (``loss``) and its higher ``clip.high``, which are the
defaults, DAPO is ``max_refills`` and ``overlong``; Dr. GRPO is ``loss: dr_grpo`` and
``estimator: {normalise_std: false}``; GRPO as it was published is ``loss: grpo`` and
``clip: {high: 0.2}``.

Advantages come from ``agl_learning.advantages.weighing``, by the option ``estimator``.

Sources: GRPO (arXiv:2402.03300), DAPO (arXiv:2503.14476), Dr. GRPO (arXiv:2503.20783).

Where we differ, besides what ``loss`` says:

1. Mean and deviation of a group are over rollouts, each with weight 1 whatever its number of rows.
2. Calls of one rollout may have different rewards, and be compared with different calls of
   sibling rollouts, when a credit rule says so; ``agl_learning.advantages.group_advantages`` has
   that part of the formula.
3. The ratio of tokens with negative advantage has a cap; see ``loss.clipped``.
"""

from dataclasses import dataclass

from agl_torch.policy import PolicyTraining


@dataclass(kw_only=True, eq=False, repr=False)
class GRPO(PolicyTraining):
    """Group-relative policy optimisation (arXiv:2402.03300) in plain PyTorch.

    DAPO and Dr. GRPO are options of it: see ``loss``.
    """

    name = "grpo"
