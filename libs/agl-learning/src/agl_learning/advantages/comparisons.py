"""Which rollouts of a batch are compared with which, and an estimator over usable rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.estimator_option import Estimated, Foreseen, describe_estimator
from agl_learning.advantages.group_advantages import Moments, moments
from agl_learning.advantages.trajectories import Call, lay_out
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.trajectories import Trajectories
    from agl_learning.collect.results import Ended

EQUAL = 1e-6
"""Rewards that differ by no more than this part of the largest of their group are equal. Coarser
than ``group_advantages.EQUAL``: single precision keeps seven digits of a reward."""


@dataclass(frozen=True)
class Inputs:
    """What estimators read. ``NT`` tensors are packed, see ``Trajectories.pack``."""

    rollouts: "Trajectories"
    outcomes_N: "Tensor"
    """The reward of each rollout; NaN where its calls have different ones."""
    penalties_NT: "Tensor"
    """What a KL penalty adds to the rewards; zeros without one."""
    gamma: float = 1.0
    lam: float = 1.0
    normalise_std: bool = True
    reward_keys: Sequence[str] = ()
    reward_weights: Sequence[float] | None = None
    values_NT: "Tensor | None" = None
    old_logprobs_NT: "Tensor | None" = None
    sum_pi_squared_NT: "Tensor | None" = None
    importance_NT: "Tensor | None" = None

    @property
    def rewards_NT(self) -> "Tensor":
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


EstimatorFunction = Callable[[Inputs], "Tensor | tuple[Tensor, Tensor]"]
"""Gives advantages ``(N, T)``, or these and returns."""

Comparison = Callable[[list[list[Entry]]], list[list[float]]]
"""Per rollout of a group its entries -> the same shape: how much better each of them did."""


def token_weights(
    mask_NT: "Tensor", mean: str = "rollout", constant: float | None = None
) -> "Tensor":
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


def whiten(values_NT: "Tensor", mask_NT: "Tensor") -> "Tensor":
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


def compared(inputs: Inputs, compare: Comparison, whole: bool = False) -> "Tensor":
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


def estimate(
    estimator: EstimatorFunction,
    members: "Sequence[tuple[Ended, list[tuple[int, TrainingRow]]]]",
    compared_N: Sequence[Sequence[Sequence[Advantage]]],
    options: Any,
    foreseen: Foreseen | None,
) -> list[list[Estimated]]:
    """Advantages by an estimator, per rollout and row.

    Args:
        estimator: That of ``options``.
        members: At least one rollout, with its usable rows, each with its place among all.
        compared_N: Per rollout, per row, one per call; their sentences are about its reward.
        options: ``WeighingOptions``: which estimator, and how.
        foreseen: What a model says of the rows, in their order here.

    Raises:
        ConfigError: The credits tell calls apart that it does not, or one of your own gives what
            are no advantages.
    """
    numbers, model = count(), foreseen or Foreseen()
    rows = [row for _, numbered in members for _, row in numbered]
    masks = [torch.tensor(row.loss_mask) for row in rows]
    laid = lay_out(
        [[next(numbers) for _ in numbered] for _, numbered in members],
        pad_sequence(masks, batch_first=True),
        names=[one.rollout.rollout_id for one, _ in members],
        tasks=[str(one.group) for one, _ in members],
        calls=[
            [Call(*span, credit) for span, credit in zip(row.call_ranges, row.credits, strict=True)]
            for row in rows
        ],
        rewards=[one.rewards for one, _ in members],
    )
    calls_N = laid.calls or []
    outcomes: list[float] = []
    for calls in calls_N:
        rewards = {call.credit.reward for call in calls}
        outcomes.append((rewards.pop() or 0.0) if len(rewards) == 1 else math.nan)
    values_NT = None if model.values is None else _packed(laid, masks, model.values)
    inputs = Inputs(
        laid,
        torch.tensor(outcomes, dtype=torch.double),
        _packed(laid, masks, model.penalties),
        gamma=model.gamma,
        lam=model.lam,
        normalise_std=options.estimator.normalise_std,
        reward_keys=[*(options.estimator.rewards or ())],
        reward_weights=options.estimator.rewards and [*options.estimator.rewards.values()],
        values_NT=values_NT,
    )
    name: str = options.estimator.type
    try:
        found = estimator(inputs)
    except AlgorithmError as error:  # only credits that do not fit the estimator are left
        raise ConfigError(str(error)) from None
    pair: Any = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    advantages_NT, returns_NT = cast("tuple[Tensor, Tensor | None]", pair)
    _check_advantages(name, advantages_NT, laid)
    is_own = ":" in name  # it need not use the mean of the group, nor its deviation
    is_by_token = returns_NT is not None or is_own
    text = f"{name} ({describe_estimator(name)})"
    estimated_N: list[list[Estimated]] = []
    for n, (calls, compared) in enumerate(zip(calls_N, compared_N, strict=True)):
        rest, of_rows = iter(calls), list[Estimated]()
        for of_row in compared:
            spans = [*islice(rest, len(of_row))]
            tokens = _cut(advantages_NT, n, spans)
            said = [one.because for one in of_row]
            if is_own:
                said = [f"{call.credit.reward or 0.0:.4g}" for call in spans]
            given: list[Advantage] = []
            for each, of_call, reward in zip(of_row, tokens, said, strict=True):
                low, high, because = min(of_call), max(of_call), text
                if low != high:
                    because += f", the mean of {len(of_call)} tokens from {low:.4g} to {high:.4g}"
                given.append(
                    Advantage(
                        value=low if low == high else math.fsum(of_call) / len(of_call),
                        group=each.group,
                        because=f"{because}; its reward: {reward}",
                        estimator=name,
                        is_mean=low != high,
                        is_foreseen=foreseen is not None,
                    )
                )
            returns = [] if values_NT is None else _cut(returns_NT, n, spans)
            by_token = tokens if is_by_token else []
            of_rows.append(Estimated(given, by_token, returns, _cut(values_NT, n, spans)))
        estimated_N.append(of_rows)
    return estimated_N


def _check_advantages(name: str, given: Any, laid: "Trajectories") -> None:
    """Refuse what an estimator of one's own gives in the place of a finite number per token."""
    shape = tuple(laid.mask_NT.shape)
    if not isinstance(given, torch.Tensor) or given.shape != shape:
        got = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        raise ConfigError(
            f"estimator {name!r}: expected an advantage for each token, in a tensor of {shape} "
            f"(rollouts, tokens); got {got}"
        )
    bad_N = ~given.isfinite().all(-1)
    if bad_N.any():
        wrong = laid.names[int(bad_N.nonzero()[0])]
        raise ConfigError(
            f"estimator {name!r}: the advantages of {int(bad_N.sum())} of {len(bad_N)} rollouts "
            f"are not finite, of {wrong!r} for one. inputs.outcomes_N is NaN where calls of a "
            "rollout have different rewards: compare calls, or use credit: final"
        )


def _packed(
    laid: "Trajectories", masks: "Sequence[Tensor]", values: list[list[float]] | None
) -> "Tensor":
    """Numbers of rows' sampled tokens as those of rollouts' tokens; zeros of None."""
    values_NT = torch.zeros(laid.mask_NT.shape, dtype=torch.double)
    if values is None:
        return values_NT
    rows: list[Tensor] = []
    counts = [int(mask.sum()) for mask in masks]
    if [len(given) for given in values] != counts:
        raise ConfigError(
            f"foresee: expected for each row a number per sampled token, {counts[:9]} of them; got "
            f"{[len(given) for given in values[:9]]}"
        )
    for mask, given in zip(masks, values, strict=True):
        row = torch.zeros(len(mask), dtype=torch.double)
        row[mask.bool()] = torch.tensor(given, dtype=torch.double)
        rows.append(row)
    packed_NT = pad_sequence(rows, batch_first=True)[laid.row_NT, laid.token_NT]
    return torch.where(laid.mask_NT, packed_NT, values_NT)


def _cut(values_NT: "Tensor | None", n: int, calls: Sequence[Call]) -> list[list[float]]:
    """The values of a rollout's tokens, per call; none of None."""
    if values_NT is None:
        return []
    return [values_NT[n, one.start : one.end].tolist() for one in calls]  # pyright: ignore
