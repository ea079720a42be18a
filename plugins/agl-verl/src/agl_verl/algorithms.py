"""Algorithms by name: what each of them changes in verl's configuration.

One name chooses the advantage estimator, whether there is a critic, the policy loss and how tokens
are weighed in it. Everything else (learning rate, clip bounds, KL penalties ...) stays as it is.
Formulas and sources are in ``agl_learning.advantages.estimators``, ``losses`` and
``docs/explanation/verl-algorithms.md``.
"""

from dataclasses import dataclass, field
from typing import Any

from agl.errors import ConfigError
from agl.utils.text import did_you_mean

LOSS_MEAN = "actor_rollout_ref.rollout.custom.agl_loss_mean"
_STD = "algorithm.norm_adv_by_std_in_grpo"
_LOW = "actor_rollout_ref.actor.clip_ratio_low"
_HIGH = "actor_rollout_ref.actor.clip_ratio_high"

TUNABLE = (LOSS_MEAN, _LOW, _HIGH)
"""Which of an algorithm's ``changes`` are defaults: with another value it is still the same."""

MEANS_OF_VERL = {
    "seq-mean-token-mean": "rollout",
    "token-mean": "token",
    "seq-mean-token-sum-norm": "constant",
}
"""verl's ``loss_agg_mode`` -> the same with rollouts in the place of rows."""


@dataclass(frozen=True)
class VerlAlgorithm:
    """A name, and what it stands for."""

    estimator: str
    """One of ``agl_learning.ESTIMATORS``."""
    summary: str
    loss_mode: str = "vanilla"
    """verl's ``policy_loss.loss_mode``."""
    loss_mean: str = "rollout"
    """How tokens are weighed, see ``losses``."""
    critic: bool = False
    others: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further options of verl, dotted."""

    @property
    def changes(self) -> dict[str, Any]:
        """Dotted option of verl's configuration -> value."""
        return {
            "algorithm.adv_estimator": f"agl_{self.estimator}",
            "critic.enable": self.critic,
            "actor_rollout_ref.actor.policy_loss.loss_mode": self.loss_mode,
            LOSS_MEAN: self.loss_mean,
            **self.others,
        }


ALGORITHMS: dict[str, VerlAlgorithm] = {
    "cispo": VerlAlgorithm(
        "grpo", "GRPO with clipped importance weights for all tokens", "cispo", "token"
    ),
    "dppo_kl": VerlAlgorithm("grpo", "GRPO, tokens held by KL divergence", "dppo_kl"),
    "dppo_tv": VerlAlgorithm("grpo", "GRPO, tokens held by total variation", "dppo_tv"),
    "dr_grpo": VerlAlgorithm(
        "grpo",
        "GRPO without division by deviation or length",
        loss_mean="constant",
        others={_STD: False},
    ),
    "dro": VerlAlgorithm("grpo", "GRPO held by a quadratic penalty, policy_loss.dro_beta", "dro"),
    "gdpo": VerlAlgorithm("gdpo", "GRPO per dimension of the reward"),
    "gmpo": VerlAlgorithm(
        "grpo",
        "GRPO with a geometric mean of ratios per row",
        "geo_mean",
        others={_LOW: 0.4, _HIGH: 0.4},
    ),
    "gpg": VerlAlgorithm("gpg", "plain policy gradient, larger where rewards are rare", "gpg"),
    "grpo": VerlAlgorithm("grpo", "rewards against those of siblings", others={_STD: True}),
    "grpo_passk": VerlAlgorithm("grpo_passk", "only the best sibling, against the second best"),
    "gspo": VerlAlgorithm(
        "grpo", "GRPO with one ratio per row", "gspo", others={_LOW: 3e-4, _HIGH: 4e-4}
    ),
    "opo": VerlAlgorithm("opo", "rewards against siblings weighed by length"),
    "optimal_token_baseline": VerlAlgorithm(
        "optimal_token_baseline", "rewards to go against a baseline per token"
    ),
    "ppo": VerlAlgorithm("gae", "a critic estimates what is to come (GAE)", critic=True),
    "reinforce++": VerlAlgorithm("reinforce_plus_plus", "rewards to go, whitened over the batch"),
    "reinforce++-baseline": VerlAlgorithm(
        "reinforce_plus_plus_baseline", "rewards against siblings, whitened over the batch"
    ),
    "rloo": VerlAlgorithm("rloo", "rewards against the mean of the other siblings"),
    "sapo": VerlAlgorithm("grpo", "GRPO with a smooth gate in the place of clipping", "sapo"),
}
"""By name, in the order of the alphabet."""

ALIASES = {
    "gae": "ppo",
    "geo_mean": "gmpo",
    "grpo_vectorized": "grpo",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++-baseline",
    "rloo_vectorized": "rloo",
    "tir_optimal_token_baseline": "optimal_token_baseline",
}
"""Names that verl has for the same."""

REFUSED = {
    "remax": "its baseline is a greedy rollout of each task, which verl's V1 trainers do not make; "
    "take rloo, whose baseline is the siblings",
    "clip_cov": "it chooses tokens within a micro-batch, so the gradient depends on its size",
    "kl_cov": "it chooses tokens within a micro-batch, so the gradient depends on its size",
    "dapo": "it is grpo with clip_ratio_high, filter_groups and agl_loss_mean=token; set these",
}
"""Names that one may expect here -> why they are not."""


def verl_algorithm(name: str) -> VerlAlgorithm:
    """What a name stands for.

    Raises:
        ConfigError: There is no such algorithm; the nearest is named, or why it is refused.
    """
    found = ALGORITHMS.get(ALIASES.get(name, name))
    if found is not None:
        return found
    if name in REFUSED:
        raise ConfigError(f"algorithm {name!r} is refused: {REFUSED[name]}")
    known = [*ALGORITHMS, *ALIASES]
    raise ConfigError(
        f"unknown algorithm {name!r}; known: {', '.join(ALGORITHMS)}.{did_you_mean(name, known)}"
    )


def translate_loss_mean(config: dict[str, Any]) -> None:
    """Turn a given ``actor.loss_agg_mode`` into ours, which is over rollouts.

    Args:
        config: verl's configuration as the user gave it, nested; changed in place.

    Raises:
        ConfigError: It has no counterpart, is given twice, or is the critic's.
    """
    worker = config.get("actor_rollout_ref") or {}
    custom = (worker.get("rollout") or {}).get("custom") or {}
    ours = custom.get("agl_loss_mean")
    if ours == "verl":
        return
    if (config.get("critic") or {}).get("loss_agg_mode") is not None:
        raise ConfigError(
            "critic.loss_agg_mode: the critic weighs tokens as the actor does; leave it out, or "
            f"set {LOSS_MEAN}=verl, by which verl weighs rows and tokens"
        )
    mode = (worker.get("actor") or {}).get("loss_agg_mode")
    if mode is None:
        return
    if mode not in MEANS_OF_VERL:
        raise ConfigError(
            f"actor.loss_agg_mode {mode!r} has no counterpart over rollouts; take one of "
            f"{', '.join(MEANS_OF_VERL)}, or set {LOSS_MEAN}=verl"
        )
    if ours is not None and ours != MEANS_OF_VERL[mode]:
        raise ConfigError(
            f"actor.loss_agg_mode is {mode!r}, which over rollouts is {MEANS_OF_VERL[mode]!r}, and "
            f"{LOSS_MEAN} is {ours!r}; say it in one place"
        )
    worker.setdefault("rollout", {}).setdefault("custom", {})["agl_loss_mean"] = MEANS_OF_VERL[mode]
