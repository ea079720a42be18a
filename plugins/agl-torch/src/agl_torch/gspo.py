"""``GSPO``: GRPO with one ratio per sequence.

With the advantages of GRPO, and over the n sampled tokens of a row

    s   = exp((sum_t (new_t - old_t)) / n)
    g_t = min(s * A, clip(s, 1 - low, 1 + high) * A)

the same for all its tokens, so that a bound holds a sequence or none of it. It moves far less than
ratios of tokens do, and so its bounds are a thousand times as narrow.

Advantages come from ``agl_learning.advantages.weighing``, by the option ``estimator``.

Source: GSPO (arXiv:2507.18071).

Where we differ, besides what ``loss`` and ``grpo`` say:

1. The sequence is a row, with all answers of the model that continue each other in it; calls of one
   row with advantages of their own share its ratio, and each is taught its own advantage (their
   GSPO-token).
2. old_t is what the trainer itself computes before the update: what a server computes differs by
   rounding, which in 16 bits is wider than these bounds. ``sampling_correction`` says what becomes
   of the difference.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agl_torch.options import Clip, Loss
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_torch.loss import Gain, Tokens


@dataclass(kw_only=True, eq=False, repr=False)
class GSPO(PolicyTraining):
    """Group sequence policy optimisation (arXiv:2507.18071) in plain PyTorch."""

    name = "gspo"

    clip: Clip = Clip(low=3e-4, high=4e-4)
    loss: Loss = field(default=Loss(type="grpo"), init=False)

    def gain(self, tokens: "Tokens") -> "Gain":
        """The clipped surrogate of each row, at each of its tokens."""
        own_N = tokens.log_ratio_N
        sum_N, size_N = tokens.over_rows(own_N.detach())
        # Its value is the row's, and its gradient that of the token alone.
        log_ratio_N = sum_N / size_N + own_N - own_N.detach()
        return self.clipped(log_ratio_N, tokens.advantages_N)
