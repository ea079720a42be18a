"""How much better than its siblings each call did: pure functions over training rows.

For the N rollouts of one task (siblings), a call with credit c and group g has

    A = (c.reward - mean_g) / (std_g + 1e-6) + w * (c.step.reward - mean_s) / (std_s + 1e-6)

where g are the calls whose credit has the same ``group``, s those whose ``step`` has the same
group, w is ``step.weight``, and the second term is only there where the rule gave a ``step``.

Sources: the first term is GRPO (arXiv:2402.03300), both together are GiGPO (arXiv:2505.10978).

Where we differ: means and deviations are over rollouts, each with weight 1 however many calls or
rows it has in the group; the calls of a rollout share its weight equally.
"""

from collections.abc import Iterable, Sequence

from agl.types import Advantage, Credit, TrainingRow

EQUAL = 1e-8
"""Rewards of a group that differ by no more are equal."""


def group_advantages(
    rewards_G_D: Sequence[Sequence[float]], normalise_std: bool = True
) -> list[list[float]]:
    """Advantage per entry of one group.

    Args:
        rewards_G_D: Per rollout of the group, its rewards (at least one).
        normalise_std: Divide by the group's (population) standard deviation plus 1e-6.

    Returns:
        Same shape. All zero when the rewards are equal.

    Raises:
        ValueError: The group, or a rollout, is empty.

    Example:
        ``[[1.0], [0.0, 0.0]]``: two rollouts, the second with two rewards. Mean 0.5 and deviation
        0.5, as if each had one: ``[[1.0], [-1.0, -1.0]]`` (up to the 1e-6).
    """
    mean, std = moments(rewards_G_D)
    return [[_advantage(reward, mean, std, normalise_std) for reward in row] for row in rewards_G_D]


def moments(rewards_G_D: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and population standard deviation over rollouts, each with weight 1.

    Raises:
        ValueError: The group, or a rollout, is empty.
    """
    if not rewards_G_D or any(not row for row in rewards_G_D):
        raise ValueError(f"a group needs rollouts, and each of them rewards; got {rewards_G_D!r}")
    mean = sum(sum(row) / len(row) for row in rewards_G_D) / len(rewards_G_D)
    variance = sum(
        sum((reward - mean) ** 2 for reward in row) / len(row) for row in rewards_G_D
    ) / len(rewards_G_D)
    return mean, variance**0.5


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
) -> dict[str, tuple[float, float, int]]:
    """Group -> mean, standard deviation, number of rollouts in it."""
    rewards: dict[str, list[list[float]]] = {}
    for keyed in keyed_G:
        of_rollout: dict[str, list[float]] = {}
        for key, reward in keyed:
            of_rollout.setdefault(key, []).append(reward)
        for key, values in of_rollout.items():
            rewards.setdefault(key, []).append(values)
    return {key: (*moments(values), len(values)) for key, values in rewards.items()}


def _of_credit(
    credit: Credit,
    groups: dict[str, tuple[float, float, int]],
    steps: dict[str, tuple[float, float, int]],
    normalise_std: bool,
) -> Advantage:
    reward = credit.reward or 0.0
    mean, std, number = groups[credit.group]
    value = _advantage(reward, mean, std, normalise_std)
    whole = f" ({credit.group})" if credit.group else ""
    because = f"{reward:.4g} against mean {mean:.4g}, std {std:.4g} of {number} rollouts{whole}"
    if credit.step is not None:
        step = credit.step
        mean, std, number = steps[step.group]
        value += step.weight * _advantage(step.reward, mean, std, normalise_std)
        because += (
            f"; plus {step.weight:.4g} times {step.reward:.4g} against mean {mean:.4g}, "
            f"std {std:.4g} of {number} rollouts ({step.group})"
        )
    return Advantage(value=value, group=credit.group, because=because)


def _advantage(reward: float, mean: float, std: float, normalise_std: bool) -> float:
    if std <= EQUAL:
        return 0.0
    return (reward - mean) / (std + 1e-6 if normalise_std else 1.0)
