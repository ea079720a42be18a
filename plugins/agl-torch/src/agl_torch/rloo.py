"""``RLOO``: a rollout against the mean of the others, as one action.

With R_i the reward of rollout i of G siblings, less ``kl.coefficient`` times the sum over its
tokens of old_t - ref_t, and the ratio of a whole row r = exp(sum_t (new_t - old_t)),

    A_i = R_i - mean of the other R
    g   = min(r * A, clip(r, 1 - low, 1 + high) * A)

of each row, of which each of its n tokens has 1 / n; the loss is the mean over rollouts. Where r is
1, as in a first gradient step, the gradient is A times that of the log-probability of everything
that the rollout sampled: REINFORCE with a baseline that does not bias it, whatever its length.

Advantages come from ``rloo`` of ``agl_learning.advantages.estimators``.

Source: RLOO (arXiv:2402.14740).

Where we differ, besides what ``loss`` says: a rollout may have several rows, each with a ratio of
its own, which its calls share, each with its own advantage where they have them; old_t is the
trainer's own before the update, as in ``gspo``; and the ratio of a
row with negative advantage has a cap, see ``loss.clipped``.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agl_learning.advantages.estimator_option import Estimator
from agl_torch.options import Loss
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_torch.loss import Gain, Tokens


@dataclass(kw_only=True, eq=False, repr=False)
class RLOO(PolicyTraining):
    """REINFORCE against the mean of the other rollouts (arXiv:2402.14740) in plain PyTorch.

    Args:
        kl: Penalty on the divergence from the start, in the reward of each rollout.
    """

    name = "rloo"
    penalises_loss = False

    estimator: Estimator = field(default=Estimator(type="rloo"), init=False)
    loss: Loss = field(default=Loss(type="dr_grpo", constant=1), init=False)  # sums of tokens

    def gain(self, tokens: "Tokens") -> "Gain":
        """The clipped surrogate of each row, shared by its tokens."""
        own_N = tokens.log_ratio_N
        sum_N, size_N = tokens.over_rows(own_N.detach())
        # Its value is the row's, and its gradient n times that of the token, for the division.
        log_ratio_N = sum_N + size_N * (own_N - own_N.detach())
        of_row = self.clipped(log_ratio_N, tokens.advantages_N)
        return of_row._replace(gain_N=of_row.gain_N / size_N)
