"""Which rollouts of a batch are compared with which: the part that estimators share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.group_advantages import Moments, moments
from agl_learning.advantages.trajectories import Trajectories

EQUAL = 1e-6
"""Rewards that differ by no more than this part of the largest of their group are equal. Coarser
than ``group_advantages.EQUAL``: single precision keeps seven digits of a reward."""


@dataclass(frozen=True)
class Inputs:
    """What estimators read. ``NT`` tensors are packed, see ``Trajectories.pack``."""

    rollouts: Trajectories
    outcomes_N: Tensor
    """The reward of each rollout; NaN where its calls have different ones."""
    penalties_NT: Tensor
    """What a KL penalty adds to the rewards; zeros without one."""
    gamma: float = 1.0
    lam: float = 1.0
    normalise_std: bool = True
    reward_keys: Sequence[str] = ()
    reward_weights: Sequence[float] | None = None
    values_NT: Tensor | None = None
    old_logprobs_NT: Tensor | None = None
    sum_pi_squared_NT: Tensor | None = None
    importance_NT: Tensor | None = None

    @property
    def rewards_NT(self) -> Tensor:
        """Rewards in time: the outcome at the last token, penalties at their own."""
        rewards_NT = self.penalties_NT.clone()
        lengths_N = self.rollouts.lengths_N
        has = lengths_N > 0
        rewards_NT[has, lengths_N[has] - 1] += self.outcomes_N[has]
        return rewards_NT


@dataclass(frozen=True)
class Entry:
    """A reward that is compared with those of its group, for some tokens of a rollout."""

    rollout: int
    start: int
    end: int
    reward: float
    weight: float = 1.0


EstimatorFunction = Callable[[Inputs], Tensor | tuple[Tensor, Tensor]]
"""Gives advantages ``(N, T)``, or these and returns."""

Comparison = Callable[[list[list[Entry]]], list[list[float]]]
"""Per rollout of a group its entries -> the same shape: how much better each of them did."""


def token_weights(mask_NT: Tensor, mean: str = "rollout", constant: float | None = None) -> Tensor:
    """Weight per token, double.

    Args:
        mask_NT: 1 on tokens.
        mean: ``rollout``: rollouts weigh the same, tokens of one equally; ``token``: all tokens
            weigh the same; with either their sum is 1. ``constant``: tokens of a rollout are summed
            up and divided by ``constant``, and rollouts weigh the same.
        constant: Tokens; needed by the last of these.

    Raises:
        ConfigError: There is no such mean, or no constant.
    """
    lengths_N = mask_NT.sum(-1)
    number = (lengths_N > 0).sum().clamp(min=1)
    if mean == "rollout":
        return mask_NT.double() / (lengths_N.clamp(min=1) * number)[:, None]
    if mean == "token":
        return mask_NT.double() / lengths_N.sum().clamp(min=1)
    if mean == "constant" and constant:
        return mask_NT.double() / (number * constant)
    raise ConfigError(
        f"loss mean {mean!r} with constant {constant!r}: expected one of rollout, token, constant"
    )


def whiten(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Zero mean, unit variance over rollouts; zeros at the mean, and where there is one token."""
    weights_NT = token_weights(mask_NT)
    values = values_NT.double() * mask_NT
    mean = (weights_NT * values).sum()
    free = 1.0 - (weights_NT**2).sum()
    if free <= 1e-8:
        return torch.zeros_like(values_NT)
    variance = (weights_NT * (values - mean) ** 2).sum() / free
    is_equal_NT = (values - mean).abs() <= EQUAL * values.abs().amax()
    white = (values - mean) / (variance + 1e-8).sqrt() * mask_NT
    return torch.where(is_equal_NT, 0.0, white).to(values_NT.dtype)


def compared(inputs: Inputs, compare: Comparison, whole: bool = False) -> Tensor:
    """Advantage per token of a comparison among siblings."""
    rollouts = inputs.rollouts
    advantages_NT = torch.zeros_like(inputs.penalties_NT)
    for entries in _groups(inputs, whole):
        by_rollout: dict[int, list[Entry]] = {}
        for entry in entries:
            by_rollout.setdefault(entry.rollout, []).append(entry)
        group = list(by_rollout.values())
        given = compare(group)
        if [len(values) for values in given] != [len(members) for members in group]:
            raise AlgorithmError(
                "compare: expected for each rollout of a group a number per entry, "
                f"{[len(members) for members in group]} of them; got {given!r:.200}"
            )
        for members, values in zip(group, given, strict=True):
            for entry, value in zip(members, values, strict=True):
                advantages_NT[entry.rollout, entry.start : entry.end] += entry.weight * value
    return advantages_NT * rollouts.mask_NT


def _groups(inputs: Inputs, whole: bool) -> list[list[Entry]]:
    """What is compared with each other: rollouts of a task, or calls of them of one group."""
    rollouts = inputs.rollouts
    penalties: list[float] = inputs.penalties_NT.sum(-1).tolist()  # pyright: ignore
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    lengths: list[int] = rollouts.lengths_N.tolist()  # pyright: ignore
    for number, task in enumerate(rollouts.tasks):
        if rollouts.calls is None or whole:
            reward = float(inputs.outcomes_N[number]) + penalties[number]
            entry = Entry(number, 0, lengths[number], reward)
            groups.setdefault((task, "rollout", ""), []).append(entry)
            continue
        for call in rollouts.calls[number]:
            credit = call.credit
            reward = (credit.reward or 0.0) + penalties[number]
            entry = Entry(number, call.start, call.end, reward)
            groups.setdefault((task, "call", credit.group), []).append(entry)
            if credit.step is not None:
                step = credit.step
                entry = Entry(number, call.start, call.end, step.reward, step.weight)
                groups.setdefault((task, "step", step.group), []).append(entry)
    return list(groups.values())


def group_moments(group: list[list[Entry]]) -> Moments:
    """Over rollouts, each with weight 1; see ``group_advantages.moments``."""
    return moments([[entry.reward for entry in entries] for entries in group], EQUAL)


def refuse_credits_of_calls(name: str, inputs: Inputs) -> None:
    """Refuse credits that tell calls of one rollout apart: this estimator cannot use them."""
    for rollout, calls in zip(
        inputs.rollouts.names, inputs.rollouts.calls or [], strict=inputs.rollouts.calls is not None
    ):
        kinds = {(c.credit.reward, c.credit.group, c.credit.step is None) for c in calls}
        if len(kinds) > 1 or any(c.credit.step is not None for c in calls):
            rule = next((c.credit.rule for c in calls if c.credit.rule), "of unknown name")
            raise AlgorithmError(
                f"estimator {name!r} takes the reward of whole rollouts, but the credit rule "
                f"{rule!r} tells calls of rollout {rollout!r} apart. Use the rule 'final', or an "
                "algorithm that compares calls, such as grpo or rloo"
            )
