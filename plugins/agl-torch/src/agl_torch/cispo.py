"""``CISPO``: GRPO in which no token loses its gradient.

With the advantages of GRPO and r_t = exp(new_t - old_t)

    g_t = min(r_t, cap) * A * new_t        the first factor without gradient

so that a token whose probability has moved far counts less than it would, and still counts.

Advantages come from ``agl_learning.advantages.weighing``, by the option ``estimator``.

Source: CISPO of MiniMax-M1 (arXiv:2506.13585), with a bound above only, as there.

Where we differ, see ``loss`` and ``grpo``.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt

from agl_torch.options import Clip
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_torch.loss import Gain, Tokens


@dataclass(kw_only=True, eq=False, repr=False)
class CISPO(PolicyTraining):
    """Clipped importance weights for all tokens (arXiv:2506.13585) in plain PyTorch.

    Args:
        ratio_cap: Ratios of probabilities count up to this, those of all tokens.
    """

    name = "cispo"

    clip: Clip = field(default=Clip(), init=False)
    ratio_cap: Annotated[float, Gt(0)] = 5.0

    def gain(self, tokens: "Tokens") -> "Gain":
        """The weighted log-probability of each token."""
        from agl_torch.loss import MAX_LOG_RATIO, Gain

        ratio_N = tokens.log_ratio_N.detach().clamp(max=MAX_LOG_RATIO).exp()
        weighted_N = ratio_N.clamp(max=self.ratio_cap) * tokens.advantages_N
        return Gain(weighted_N * tokens.logprobs_N, ratio_N > self.ratio_cap)
