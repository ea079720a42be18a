"""``ReinforcePlusPlus``: rollouts against all others of the step, without groups or a critic.

With r_t the rewards in time (the reward of the rollout at its last token, and at every token
- ``kl.coefficient`` * (old_t - ref_t)), over all T sampled tokens of the rollout,

    G_t = r_t + gamma * G_(t+1)
    A_t = (G_t - mean) / sqrt(variance + 1e-8)       over the step, each rollout with weight 1

and what a token gains is the clipped surrogate of ``loss``. With the estimator
``reinforce_plus_plus_baseline`` R_i - mean of its group is whitened, of rewards less their
penalties.

Advantages come from ``agl_learning.advantages.estimators``, by the option ``estimator``.

Source: REINFORCE++ (arXiv:2501.03262).

Where we differ, besides what ``loss`` says: mean and variance are over rollouts, so that long ones
do not count more; and the ratio of tokens with negative advantage has a cap, see ``loss.clipped``.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Gt, Le

from agl.errors import ConfigError
from agl_learning.advantages.estimator_option import Estimator, Foreseen
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_records.training_data import TrainingRow


@dataclass(frozen=True, kw_only=True, repr=False)
class _Estimator(Estimator):
    """How rollouts are compared.

    Args:
        type: ``reinforce_plus_plus``, or ``reinforce_plus_plus_baseline``, which compares rollouts
            of one task before.
    """

    type: Literal["reinforce_plus_plus", "reinforce_plus_plus_baseline"] = "reinforce_plus_plus"  # pyright: ignore[reportIncompatibleVariableOverride]
    normalise_std: bool = field(default=True, init=False)
    rewards: dict[str, float] | None = field(default=None, init=False)


@dataclass(kw_only=True, eq=False, repr=False)
class ReinforcePlusPlus(PolicyTraining):
    """REINFORCE++ (arXiv:2501.03262) in plain PyTorch: rewards whitened over a step, no critic.

    Args:
        estimator: How rollouts are compared.
        gamma: Discount factor of a reward for each token.
        kl: Penalty on the divergence from the start, in the reward of each token.
    """

    name = "reinforce++"
    penalises_loss = False

    estimator: _Estimator = _Estimator()  # pyright: ignore[reportIncompatibleVariableOverride]
    gamma: Annotated[float, Gt(0), Le(1)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma != 1.0 and self.estimator.type != "reinforce_plus_plus":
            raise ConfigError(
                f"{self.title}: gamma is {self.gamma}, and the estimator {self.estimator.type!r} "
                "gives all tokens of a rollout its whole reward. Leave gamma out, or take "
                "'reinforce_plus_plus'"
            )

    def foresee(self, rows: "list[TrainingRow]") -> Foreseen:
        """Penalties, and what time costs."""
        return Foreseen(self.penalties(rows), gamma=self.gamma)
