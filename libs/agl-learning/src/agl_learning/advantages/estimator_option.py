"""The option ``estimator``, what goes into an estimator beside rewards, and what comes out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import getdoc, isclass, iscoroutinefunction, signature
from typing import Any

from agl.errors import ConfigError
from agl.plugins.build import import_attribute
from agl.utils.checks import check_choice, check_numbers
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage
from agl_runs.options import Group

DEFAULT = "grpo"
ADVANTAGES = {
    DEFAULT: "the distance from the mean of its group, in deviations",
    "rloo": "the distance from the mean of the others",
    "opo": "the distance from the mean of its group, weighed by sampled tokens",
    "gpg": "the distance from the mean of its group, larger where few rollouts got a reward",
    "grpo_passk": "of the best of a task the distance from the second best, of others none",
    "gdpo": "the distances of its dimensions from their means, summed and whitened over the step",
    "reinforce_plus_plus": "whitened over the step",
    "reinforce_plus_plus_baseline": "the distance from the mean of its group, whitened over the "
    "step",
}
"""Estimator -> what a call's advantage is of its reward."""
ABOUT = {
    **ADVANTAGES,
    "gae": "how much more came than a critic expected, whitened over the step",
    "optimal_token_baseline": "rewards to go, less those of siblings by a baseline per token",
    "reverse_kl": "how much likelier a teacher finds its tokens, in nats; rewards have no part",
}
OF_TOKENS = {
    "gae": "a critic's values, which the algorithm 'ppo'",
    "optimal_token_baseline": "sums of squared probabilities, which the algorithm 'verl'",
    "reverse_kl": "a teacher's log-probabilities, which the algorithm 'distillation'",
}
"""Estimators whose advantage differs within a call -> what they need, and who has it."""
WITH_DEVIATIONS = (DEFAULT, "grpo_passk", "gdpo")
"""Estimators that divide by the standard deviation of a group unless told not to."""
ACROSS_TASKS = ("reinforce_plus_plus", "gae", "reverse_kl")
"""Estimators that look at the rollouts of a step whether they are siblings or not."""


@dataclass(frozen=True)
class Foreseen:
    """What a model says of the sampled tokens before their advantages are made.

    Lists have one list per row, with one number per sampled token.
    """

    penalties: list[list[float]] | None = None
    """Added to the rewards.

    Estimators along a rollout (``gae``, ``reinforce_plus_plus``) take each at its token, and
    ``reverse_kl`` takes nothing else. Those that compare siblings add the sum over a rollout's
    tokens to the reward of each of its calls; ``gdpo``, which compares dimensions, refuses them.
    """
    values: list[list[float]] | None = None
    """What a critic expects before each token."""
    gamma: float = 1.0
    """Discount factor of a reward for each token."""
    lam: float = 1.0
    """Of generalised advantage estimation."""


Foresee = Callable[[list[TrainingRow]], Foreseen | None]
"""Looks at all rows that are weighed."""


@dataclass(frozen=True)
class Estimated:
    """What one row gets; a list of lists has one list per call, with one number per token."""

    advantages: list[Advantage]
    """One per call: the mean over its tokens."""
    tokens: list[list[float]] = field(default_factory=list[list[float]])
    """Advantages, where those of a call's tokens differ; else empty."""
    returns: list[list[float]] = field(default_factory=list[list[float]])
    values: list[list[float]] = field(default_factory=list[list[float]])


def describe_estimator(name: str) -> str:
    """What an estimator makes of rewards; of ``module:function`` the first line that says so."""
    if ":" in name:
        return (getdoc(import_attribute(name)) or "of one's own").partition("\n")[0].rstrip(".")
    return ABOUT[name]


def check_estimator(owner: str, name: str) -> None:
    """Refuse what is no estimator of calls.

    Raises:
        ConfigError: It names it, and what there is.
    """
    if ":" in name:
        found: Any = import_attribute(name, f"{owner}: estimator")
        where = f"{owner}: estimator {name!r}"
        if not callable(found) or isclass(found) or iscoroutinefunction(found):
            raise ConfigError(f"{where} is no function that gives advantages")
        try:
            signature(found).bind("inputs")
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: expected a function of one argument, the inputs") from None
    elif name in OF_TOKENS:
        raise ConfigError(
            f"{owner}: estimator {name!r} gives each token an advantage of its own and needs "
            f"{OF_TOKENS[name]} has. Here there are {', '.join(ADVANTAGES)}"
        )
    else:
        check_choice(owner, list(ADVANTAGES), estimator=name)


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimator(Group):
    """How advantages are computed.

    Args:
        type: ``grpo``, ``rloo``, ``opo``, ``gpg``, ``grpo_passk``, ``gdpo``,
            ``reinforce_plus_plus`` or ``reinforce_plus_plus_baseline``, as in agl-verl, or a
            function of your own as ``module:function``. All but the first need torch.
        normalise_std: Divide advantages by the sample standard deviation of the group's rewards;
            for ``grpo``, ``grpo_passk`` and ``gdpo``.
        rewards: With ``gdpo``: the dimensions of the reward that are compared, each by itself ->
            how much it counts.
    """

    type: str = DEFAULT
    normalise_std: bool = True
    rewards: dict[str, float] | None = None

    def problem(self) -> str | None:
        if self.type != "gdpo" and self.rewards is not None:
            return f"rewards is for 'gdpo', and estimator is {self.type!r}. Leave it out"
        if self.type == "gdpo" and not self.rewards:
            return (
                "rewards is needed by 'gdpo': the names of the reward's dimensions, each with how "
                "much it counts"
            )
        weights: dict[str, Any] = {f"rewards.{n}": x for n, x in (self.rewards or {}).items()}
        check_numbers("Estimator", **weights)
        if self.normalise_std or self.type in WITH_DEVIATIONS:
            return None
        return (
            f"normalise_std=False is for the estimators {', '.join(WITH_DEVIATIONS)}, and "
            f"estimator is {self.type!r}, which divides by no deviation of a group. Leave it out"
        )
