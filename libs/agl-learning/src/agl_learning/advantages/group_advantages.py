"""How much better than its siblings each call did: pure functions over training rows.

For the N rollouts of one task (siblings), a call with credit c and group g has

    A = (c.reward - mean_g) / (std_g + 1e-6) + w * (c.step.reward - mean_s) / (std_s + 1e-6)

where g are the calls whose credit has the same ``group``, s those whose ``step`` has the same
group, w is ``step.weight``, and the second term is only there where the rule gave a ``step``. The
deviation std is that of a sample, with n - 1 in its denominator, as in TRL and verl: of two
rollouts with different rewards one has the advantage 0.7071, and the other -0.7071.

Sources: the first term is GRPO (arXiv:2402.03300), both together are GiGPO (arXiv:2505.10978).

Where we differ: means and deviations are over rollouts, each with weight 1 however many calls or
rows it has in the group; the calls of a rollout share its weight equally.

What counts as equal is decided on the rewards and not on what arithmetic leaves of them: two that
differ by no more than ``EQUAL`` times the largest of their group in size are equal, and one that
is equal to the mean of its group has the advantage 0, exactly. So the middle one of 0.1, 0.2, 0.3
is at the mean like that of 0, 0.5, 1, and three times 0.1 has no advantage at all, although their
sum divided by three is not 0.1.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agl_learning.advantages.estimator_option import DEFAULT
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage, Credit

EQUAL = 1e-12
"""Relative; some thousand times what rounding makes of a mean, and less than anybody means."""


class Moments(NamedTuple):
    """Of the rewards of a group, each rollout with weight 1."""

    mean: float
    std: float
    """Sample standard deviation; 0 if all rewards are equal, or there is one rollout."""
    tolerance: float
    """Rewards that differ by no more are equal."""


def distance(reward: float, baseline: float, tolerance: float) -> float:
    """``reward - baseline``; exactly 0 where that is within the tolerance."""
    value = reward - baseline
    return 0.0 if abs(value) <= tolerance else value


def group_advantages(
    rewards_G_D: Sequence[Sequence[float]], normalise_std: bool = True, equal: float = EQUAL
) -> list[list[float]]:
    """Advantage per entry of one group.

    Args:
        rewards_G_D: Per rollout of the group, its rewards (at least one).
        normalise_std: Divide by the group's (sample) standard deviation plus 1e-6.
        equal: See ``moments``.

    Returns:
        Same shape. All zero when the rewards are equal.

    Raises:
        ValueError: The group, or a rollout, is empty.

    Example:
        ``[[1.0], [0.0, 0.0]]``: two rollouts, the second with two rewards. Mean 0.5 and deviation
        0.7071, as if each had one: ``[[0.7071], [-0.7071, -0.7071]]``.
    """
    group = moments(rewards_G_D, equal)
    return [[_advantage(reward, group, normalise_std) for reward in row] for row in rewards_G_D]


def moments(rewards_G_D: Sequence[Sequence[float]], equal: float = EQUAL) -> Moments:
    """Mean and sample standard deviation over rollouts, each with weight 1.

    A single rollout has nothing to be compared with: everything is equal there.

    Args:
        rewards_G_D: Per rollout of the group, its rewards (at least one).
        equal: By which part of the largest reward's size equal rewards may differ; more than
            ``EQUAL`` for rewards that were stored with fewer digits.

    Raises:
        ValueError: The group, or a rollout, is empty.
    """
    if not rewards_G_D or any(not row for row in rewards_G_D):
        raise ValueError(f"a group needs rollouts, and each of them rewards; got {rewards_G_D!r}")
    others = len(rewards_G_D) - 1
    mean = math.fsum(math.fsum(row) / len(row) for row in rewards_G_D) / (others + 1)
    if not others:
        return Moments(mean, 0.0, math.inf)
    tolerance = equal * max(abs(reward) for row in rewards_G_D for reward in row)
    variance = (
        math.fsum(
            math.fsum(distance(reward, mean, tolerance) ** 2 for reward in row) / len(row)
            for row in rewards_G_D
        )
        / others
    )
    return Moments(mean, variance**0.5, tolerance)


def sibling_advantages(
    rows_G: Sequence[Sequence[TrainingRow]], normalise_std: bool = True
) -> list[list[list[Advantage]]]:
    """Advantage per call of the rollouts of one task.

    Args:
        rows_G: Per rollout, its rows. Each call's credit must have a reward.
        normalise_std: Divide by standard deviations.

    Returns:
        Per rollout, per row, one ``Advantage`` per call.
    """
    credits_G = [[credit for row in rows for credit in row.credits] for rows in rows_G]
    groups = _moments_by_group(
        [[(credit.group, credit.reward or 0.0) for credit in credits] for credits in credits_G]
    )
    steps = _moments_by_group(
        [[(c.step.group, c.step.reward) for c in credits if c.step] for credits in credits_G]
    )
    return [
        [[_of_credit(c, groups, steps, normalise_std) for c in row.credits] for row in rows]
        for rows in rows_G
    ]


def _moments_by_group(
    keyed_G: Sequence[Iterable[tuple[str, float]]],
) -> dict[str, tuple[Moments, int]]:
    """Group -> its moments, and the number of rollouts in it."""
    rewards: dict[str, list[list[float]]] = {}
    for keyed in keyed_G:
        of_rollout: dict[str, list[float]] = {}
        for key, reward in keyed:
            of_rollout.setdefault(key, []).append(reward)
        for key, values in of_rollout.items():
            rewards.setdefault(key, []).append(values)
    return {key: (moments(values), len(values)) for key, values in rewards.items()}


def _of_credit(
    credit: Credit,
    groups: dict[str, tuple[Moments, int]],
    steps: dict[str, tuple[Moments, int]],
    normalise_std: bool,
) -> Advantage:
    reward = credit.reward or 0.0
    group, number = groups[credit.group]
    value = _advantage(reward, group, normalise_std)
    whole = f" ({credit.group})" if credit.group else ""
    because = (
        f"{reward:.4g} against mean {group.mean:.4g}, std {group.std:.4g} of {number} "
        f"rollouts{whole}"
    )
    if credit.step is not None:
        step = credit.step
        group, number = steps[step.group]
        added = step.weight * _advantage(step.reward, group, normalise_std)
        value = distance(added, -value, EQUAL * abs(value))  # 0 where the two cancel
        because += (
            f"; plus {step.weight:.4g} times {step.reward:.4g} against mean {group.mean:.4g}, "
            f"std {group.std:.4g} of {number} rollouts ({step.group})"
        )
    return Advantage(value=value, group=credit.group, because=because, estimator=DEFAULT)


def _advantage(reward: float, group: Moments, normalise_std: bool) -> float:
    value = distance(reward, group.mean, group.tolerance)
    return value / (group.std + 1e-6 if normalise_std else 1.0)
