"""How much better than its siblings a rollout did: estimators over rollouts, as pure functions.

With ``R_i`` the reward of rollout i of n siblings, ``mean`` and ``std`` over them (n - 1 in its
denominator, see ``group_advantages``), the advantage of every sampled token of rollout i is

    grpo                 (R_i - mean) / (std + 1e-6); without the division if told so
    rloo                 R_i - mean of the others
    opo                  R_i - sum_j |o_j| R_j / sum_j |o_j|, |o_j| its sampled tokens
    gpg                  a (R_i - mean), a = rollouts in the batch / those of them with an R != 0
    grpo_passk           (R_i - second best) / (std + 1e-6) for the best of the task, else 0
    reinforce_plus_plus_baseline    whiten(R_i - mean)
    gdpo                 whiten(sum_k w_k (R_ik - mean_k) / (std_k + 1e-6)), k its dimensions

and, with r_t the rewards in time (``R`` at the last token, penalties at their own tokens), over
all T sampled tokens of the rollout as one trajectory, whatever rows they lie in,

    reinforce_plus_plus  whiten(G_t), G_t = r_t + gamma G_(t+1)
    gae                  whiten(A_t), A_t = d_t + gamma lam A_(t+1),
                         d_t = r_t + gamma V_(t+1) - V_t, V_(T+1) = 0; returns are A_t + V_t
    optimal_token_baseline    G_t - B_t, B_t = sum_i G_it W_it / sum_i W_it over siblings that have
                         a token t; W_t = sum over s <= t of (1 - 2 p_s + sum_v p_s(v)^2) c_s^2, c
                         the importance weights; B_t = 0 where only one sibling is as long

    reverse_kl           G_t - m, G_t = p_t + gamma G_(t+1), p_t the penalties alone

whiten(x) = (x - m) / sqrt(v + 1e-8): m and v are over tokens, each rollout having weight 1 and its
tokens equal shares of it; v is unbiased, divided by 1 - (sum of squared weights). Where x is equal
to m (see ``EQUAL``), whiten(x) is 0.

Sources: GRPO arXiv:2402.03300, without the deviation Dr. GRPO arXiv:2503.20783; RLOO
arXiv:2402.14740; OPO arXiv:2505.23585; GPG arXiv:2504.02546; Pass@k arXiv:2503.19595; REINFORCE++
arXiv:2501.03262; GDPO arXiv:2601.05242; GAE arXiv:1506.02438; optimal token baseline: verl 0.9.1,
``tir_optimal_token_baseline``.

Where we differ from verl, which has the same formulas over rows:

1. The members of a group are rollouts. With one row per rollout, and siblings, results are verl's,
   up to whitening, where a long rollout counts no more than a short one.
2. Time goes on from row to row: the last token of a row has the value of the next row's first
   token as its next value, and rewards are discounted across rows.
3. A rollout without siblings has advantage 0 where siblings are what it is compared with; verl
   takes its plain reward. Equal rewards give exactly 0, and so does one that is equal to what it is
   compared with, after whitening too; ``group_advantages`` says what equal means.
4. Where agl noted credits, rewards and groups of calls take the place of those of rollouts: each
   call is compared with the calls of siblings of the same ``group``; where it has a ``step``, the
   comparison of that comes to it, ``weight`` times. A rollout has weight 1 in each comparison.
"""

import torch
from torch import Tensor

from agl.errors import AlgorithmError
from agl.plugins.build import import_attribute
from agl.utils.checks import check_choice
from agl_learning.advantages.comparisons import (
    EQUAL,
    Comparison,
    Entry,
    EstimatorFunction,
    Inputs,
    compared,
    group_moments,
    refuse_credits_of_calls,
    token_weights,
    whiten,
)
from agl_learning.advantages.group_advantages import distance, group_advantages

EPSILON = 1e-6
"""Added to deviations, as in verl."""


def grpo(inputs: Inputs, whole: bool = False) -> Tensor:
    """Distance from the mean of siblings, in their standard deviations unless told not to.

    With ``whole``, rollouts are compared even where credits tell their calls apart.
    """
    return compared(inputs, _against_siblings(inputs.normalise_std), whole)


def _against_siblings(normalise_std: bool = False) -> Comparison:
    def compare(group: list[list[Entry]]) -> list[list[float]]:
        rewards_G_D = [[entry.reward for entry in entries] for entries in group]
        return group_advantages(rewards_G_D, normalise_std, EQUAL)

    return compare


def rloo(inputs: Inputs) -> Tensor:
    """Distance from the mean of the other siblings."""
    return compared(inputs, _against_others)


def _against_others(group: list[list[Entry]]) -> list[list[float]]:
    if len(group) < 2:
        return [[0.0] * len(entries) for entries in group]
    means = [sum(entry.reward for entry in entries) / len(entries) for entries in group]
    total, others, tolerance = sum(means), len(group) - 1, group_moments(group).tolerance
    return [
        [distance(entry.reward, (total - mean) / others, tolerance) for entry in entries]
        for entries, mean in zip(group, means, strict=True)
    ]


def opo(inputs: Inputs) -> Tensor:
    """Distance from the mean of siblings, weighed by their sampled tokens."""

    def compare(group: list[list[Entry]]) -> list[list[float]]:
        if len(group) < 2:
            return [[0.0] * len(entries) for entries in group]
        flat = [entry for entries in group for entry in entries]
        tokens = sum(entry.end - entry.start for entry in flat)
        baseline = sum((e.end - e.start) * e.reward for e in flat) / max(tokens, 1)
        tolerance = group_moments(group).tolerance
        return [[distance(entry.reward, baseline, tolerance) for entry in each] for each in group]

    return compared(inputs, compare)


def gpg(inputs: Inputs) -> Tensor:
    """Distance from the mean of siblings, larger where few rollouts of the batch got a reward."""
    rewarded: set[int] = set()

    def compare(group: list[list[Entry]]) -> list[list[float]]:
        rewarded.update(entry.rollout for each in group for entry in each if entry.reward != 0)
        return _against_siblings()(group)

    distances_NT = compared(inputs, compare)
    return len(inputs.outcomes_N) / max(1, len(rewarded)) * distances_NT


def reinforce_plus_plus_baseline(inputs: Inputs) -> Tensor:
    """Distance from the mean of siblings, whitened over the batch."""
    return _whiten_distances(compared(inputs, _against_siblings()), inputs.rollouts.mask_NT)


def _whiten_distances(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """``whiten``; what has no distance keeps none, whatever the mean of the batch is."""
    return whiten(values_NT, mask_NT) * (values_NT != 0)


def grpo_passk(inputs: Inputs) -> Tensor:
    """Only the best of each task: its distance from the second best."""
    refuse_credits_of_calls("grpo_passk", inputs)

    def compare(group: list[list[Entry]]) -> list[list[float]]:
        values = [[0.0] * len(entries) for entries in group]
        _, std, tolerance = group_moments(group)
        if std > 0:
            rewards = [entries[0].reward for entries in group]
            best, second = sorted(range(len(rewards)), key=lambda i: -rewards[i])[:2]
            scale = std + EPSILON if inputs.normalise_std else 1.0
            values[best][0] = distance(rewards[best], rewards[second], tolerance) / scale
        return values

    return compared(inputs, compare, whole=True)


def gdpo(inputs: Inputs) -> Tensor:
    """Each dimension of the reward compared by itself; their weighted sum, whitened."""
    refuse_credits_of_calls("gdpo", inputs)
    keys = list(inputs.reward_keys)
    if not keys:
        raise AlgorithmError("estimator 'gdpo' needs rewards, the names of the reward's dimensions")
    weights = list(inputs.reward_weights or [1.0] * len(keys))
    # With double precision, so that what is left of terms that cancel each other is rounding.
    zeros_NT = torch.zeros_like(inputs.penalties_NT, dtype=torch.double)
    total_NT, size_NT = zeros_NT.clone(), zeros_NT.clone()
    for key, weight in zip(keys, weights, strict=True):
        rewards: list[float] = []
        for name, found in zip(inputs.rollouts.names, inputs.rollouts.rewards, strict=True):
            if key not in found:
                raise AlgorithmError(
                    f"estimator 'gdpo': rollout {name!r} has no reward {key!r}; it has "
                    f"{sorted(found)}. Emit it, or correct rewards"
                )
            rewards.append(found[key])
        of_key = Inputs(
            inputs.rollouts,
            torch.tensor(rewards, dtype=torch.double),
            zeros_NT,
            normalise_std=inputs.normalise_std,
        )
        term_NT = weight * grpo(of_key, whole=True)
        total_NT += term_NT
        size_NT += term_NT.abs()
    for members in inputs.rollouts.by_task().values():
        total_GT = total_NT[members]
        is_equal_GT = total_GT.abs() <= EQUAL * size_NT[members].amax()
        total_NT[members] = torch.where(is_equal_GT, 0.0, total_GT)
    white_NT = _whiten_distances(total_NT, inputs.rollouts.mask_NT)
    return white_NT.to(inputs.penalties_NT.dtype)


def reinforce_plus_plus(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Discounted rewards to go, whitened over the batch."""
    refuse_credits_of_calls("reinforce_plus_plus", inputs)
    mask_NT = inputs.rollouts.mask_NT
    returns_NT = _to_go(inputs.rewards_NT, mask_NT, inputs.gamma)
    return whiten(returns_NT, mask_NT), returns_NT


def gae(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation along the rollout, whitened over the batch."""
    refuse_credits_of_calls("gae", inputs)
    if inputs.values_NT is None:
        raise AlgorithmError("estimator 'gae' needs a critic's values")
    mask_NT, values_NT = inputs.rollouts.mask_NT, inputs.values_NT
    next_NT = torch.zeros_like(values_NT)
    next_NT[:, :-1] = values_NT[:, 1:]
    errors_NT = inputs.rewards_NT + inputs.gamma * next_NT - values_NT
    advantages_NT = _to_go(errors_NT, mask_NT, inputs.gamma * inputs.lam)
    return whiten(advantages_NT, mask_NT), (advantages_NT + values_NT) * mask_NT


def reverse_kl(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Penalties to go, less their mean: what a teacher says of tokens. Rewards have no part in it.

    Of a model that is far from its teacher all tokens are worse than the teacher's; the mean, with
    equal weights for rollouts, tells those that are less so, and biases nothing.
    """
    mask_NT = inputs.rollouts.mask_NT
    to_go_NT = _to_go(inputs.penalties_NT, mask_NT, inputs.gamma)
    mean = (token_weights(mask_NT) * to_go_NT).sum()
    return (to_go_NT - mean) * mask_NT, to_go_NT


def optimal_token_baseline(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Rewards to go against a baseline per token, the one that makes the variance least."""
    refuse_credits_of_calls("optimal_token_baseline", inputs)
    if inputs.sum_pi_squared_NT is None or inputs.old_logprobs_NT is None:
        raise AlgorithmError(
            "estimator 'optimal_token_baseline' needs the policy's log-probabilities at the "
            "start of the step, and its sums of squared probabilities"
        )
    mask_NT = inputs.rollouts.mask_NT
    returns_NT = _to_go(inputs.rewards_NT, mask_NT, 1.0)
    # Where the model is sure, this is the small difference of numbers near one.
    energy_NT = 1 - 2 * inputs.old_logprobs_NT.double().exp() + inputs.sum_pi_squared_NT
    if inputs.importance_NT is not None:
        energy_NT = energy_NT * inputs.importance_NT**2
    path_NT = (energy_NT * mask_NT).cumsum(-1) * mask_NT
    advantages_NT = torch.zeros_like(returns_NT)
    for members in inputs.rollouts.by_task().values():
        if len(members) < 2:
            continue
        returns_GT, path_GT = returns_NT[members], path_NT[members]
        baseline_T = (returns_GT * path_GT).sum(0) / (path_GT.sum(0) + 1e-8)
        compared_T = mask_NT[members].sum(0) >= 2
        distance_GT = returns_GT - torch.where(compared_T, baseline_T, 0.0)
        # The 1e-8 above, and rounding, must leave nothing of returns that are all equal.
        shown_GT = returns_GT * mask_NT[members]
        low_T = torch.where(mask_NT[members] > 0, shown_GT, torch.inf).amin(0)
        high_T = torch.where(mask_NT[members] > 0, shown_GT, -torch.inf).amax(0)
        equal_T = compared_T & (high_T - low_T <= EQUAL * shown_GT.abs().amax(0))
        advantages_NT[members] = torch.where(equal_T, 0.0, distance_GT).to(returns_NT)
    return advantages_NT * mask_NT, returns_NT


def _to_go(values_NT: Tensor, mask_NT: Tensor, decay: float) -> Tensor:
    """``y_t = x_t + decay * y_(t+1)`` along each rollout, in double precision."""
    values = (values_NT * mask_NT).double()
    if decay == 1.0:
        sums = values.flip(-1).cumsum(-1).flip(-1)
    else:
        sums = torch.empty_like(values)
        running = values.new_zeros(values.shape[0])
        for t in reversed(range(values.shape[1])):
            running = values[:, t] + decay * running
            sums[:, t] = running
    return (sums * mask_NT).to(values_NT.dtype)


ESTIMATORS: dict[str, EstimatorFunction] = {
    "gae": gae,
    "gdpo": gdpo,
    "gpg": gpg,
    "grpo": grpo,
    "grpo_passk": grpo_passk,
    "opo": opo,
    "optimal_token_baseline": optimal_token_baseline,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "rloo": rloo,
}
"""Name -> function, of all that read rewards: all but ``reverse_kl``, which reads a teacher."""


def find_estimator(name: str) -> EstimatorFunction:
    """The function of an estimator: one of ours, or ``module:function``.

    Raises:
        ConfigError: There is none of this name.
    """
    if ":" in name:
        return import_attribute(name)
    found = {**ESTIMATORS, "reverse_kl": reverse_kl}
    check_choice("weigh", [*found], estimator=name)
    return found[name]
