"""``PPO``: a critic says what was to be expected, token by token.

With r_t the rewards in time (the reward of the rollout at its last token, and at every token
- ``kl.coefficient`` * (old_t - ref_t)) and V_t what the critic expects before token t, over all T
sampled tokens of the rollout as one line, whatever rows they lie in,

    d_t = r_t + gamma * V_(t+1) - V_t,  V_(T+1) = 0
    A_t = d_t + gamma * gae_lambda * A_(t+1), whitened over the step; the return is A_t + V_t
    L   = mean of the clipped surrogate (``loss``) + value_coefficient * that of ``value_loss``

Advantages come from ``gae`` of ``agl_learning.advantages.estimators``.

Sources: PPO (arXiv:1707.06347), GAE (arXiv:1506.02438).

Where we differ, besides what ``loss`` says: mean and variance of advantages are over rollouts, so
that long ones do not count more; and the ratio of tokens with negative advantage has a cap, see
``loss.clipped``.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le

from agl.errors import ConfigError
from agl_learning.advantages.estimator_option import Estimator, Foreseen
from agl_runs.options import AboveZero, NotNegative
from agl_torch.adapter import copy_trained
from agl_torch.models import load_model
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_records.training_data import TrainingRow
    from agl_torch.critic import Critic
    from agl_torch.learner import Objective

OF_HEAD = 0.1
"""How much a value head's loss counts, where nothing else is said."""


@dataclass(kw_only=True, eq=False, repr=False)
class PPO(PolicyTraining):
    """Proximal policy optimisation (arXiv:1707.06347) with a critic, in plain PyTorch.

    Args:
        critic: The value model: ``copy`` trains a copy of the start beside the model,
            ``head`` puts a layer on the model that is trained; else another model, as ``model``
            takes it, with the same vocabulary.
        critic_learning_rate: Learning rate of the critic.
        gamma: Discount factor of a reward for each token.
        gae_lambda: How far ahead an advantage looks: 0 to the next value, 1 to the end.
        value_clip: A value counts as moved by at most so much in one step; None lets it move.
        value_coefficient: With the critic ``head``, how much its loss counts in that of the model;
            None takes 0.1.
        kl: Penalty on the divergence from the start, in the reward of each token.
    """

    name = "ppo"
    models = ("model", "critic")
    penalises_loss = False

    estimator: Estimator = field(default=Estimator(type="gae"), init=False)
    critic: Any = "copy"
    critic_learning_rate: NotNegative = 1e-5
    gamma: Annotated[float, Gt(0), Le(1)] = 1.0
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    value_clip: AboveZero | None = 0.2
    value_coefficient: AboveZero | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_coefficient is not None and self.critic != "head":
            raise ConfigError(
                f"{self.title}: value_coefficient weighs a critic's loss against the policy's, and "
                f"critic {self.critic!r} shares no weights with it. Leave it out, and set "
                "critic_learning_rate; or take critic='head'"
            )

    def objective(self) -> "Objective":
        """With what a critic needs."""
        coefficient = (self.value_coefficient or OF_HEAD) if self.critic == "head" else 1.0
        return replace(
            super().objective(),
            critic_learning_rate=self.critic_learning_rate,
            value_clip=self.value_clip,
            value_coefficient=coefficient,
        )

    def build_critic(self, model: Any) -> "Critic":
        """One of ``critic``'s kind, that expects nothing yet."""
        from agl_torch.critic import Critic

        if self.critic == "head":
            return Critic(model, is_apart=False)
        if self.critic == "copy":
            return Critic(copy_trained(model), is_apart=True)
        other = load_model(self.critic, self.device, "float32")
        sizes = [one.get_input_embeddings().weight.shape[0] for one in (model, other)]
        if sizes[0] > sizes[1]:
            raise ConfigError(
                f"{self.title}: the critic reads the tokens of the model, which has {sizes[0]} of "
                f"them, and knows {sizes[1]}. Give one with the same vocabulary"
            )
        return Critic(other, is_apart=True)

    def foresee(self, rows: "list[TrainingRow]") -> Foreseen:
        """Penalties and values, and what time costs."""
        values = self._learner.expected(rows)
        return Foreseen(self.penalties(rows), values, self.gamma, self.gae_lambda)
