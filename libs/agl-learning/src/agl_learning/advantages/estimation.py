"""An estimator over the usable rows of a collection: its advantages by call, and by token."""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.comparisons import Inputs
from agl_learning.advantages.estimates import Estimated, Foreseen, mean_of_tokens
from agl_learning.advantages.estimator_option import describe_estimator, find_estimator
from agl_learning.advantages.trajectories import Call, lay_out
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.trajectories import Trajectories
    from agl_learning.collect.results import Ended


def estimate(
    members: "Sequence[tuple[Ended, list[tuple[int, TrainingRow]]]]",
    compared_N: Sequence[Sequence[Sequence[Advantage]]],
    options: Any,
    foreseen: Foreseen,
) -> list[list[Estimated]]:
    """Advantages by an estimator, per rollout and row.

    Args:
        members: At least one rollout, with its usable rows, each with its place among all.
        compared_N: Per rollout, per row, one per call; their sentences are about its reward.
        options: ``WeighingOptions``: which estimator, and how.
        foreseen: What a model says of the rows, in their order here.

    Raises:
        ConfigError: The credits tell calls apart that it does not, or one of your own gives what
            are no advantages.
    """
    numbers = count()
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
    for (one, _), calls in zip(members, calls_N, strict=True):
        # Of one reward for all calls that is the rollout's, whichever the credit rule took.
        rewards = {call.credit.reward for call in calls}
        outcomes.append((rewards.pop() if len(rewards) == 1 else one.reward) or 0.0)
    values_NT = None if foreseen.values is None else _packed(laid, masks, foreseen.values)
    inputs = Inputs(
        laid,
        torch.tensor(outcomes, dtype=torch.double),
        _packed(laid, masks, foreseen.penalties),
        gamma=foreseen.gamma,
        lam=foreseen.lam,
        normalise_std=options.estimator.normalise_std,
        reward_keys=[*(options.estimator.rewards or ())],
        reward_weights=options.estimator.rewards and [*options.estimator.rewards.values()],
        values_NT=values_NT,
    )
    name: str = options.estimator.type
    try:
        found = find_estimator(name)(inputs)
    except AlgorithmError as error:  # only credits that do not fit the estimator are left
        raise ConfigError(str(error)) from None
    given: tuple[Tensor, Tensor | None] = found if isinstance(found, tuple) else (found, None)
    advantages_NT, returns_NT = given
    if advantages_NT.shape != laid.mask_NT.shape or not advantages_NT.isfinite().all():
        raise ConfigError(
            f"estimator {name!r}: expected a finite advantage for each token, in a tensor of "
            f"{tuple(laid.mask_NT.shape)} (rollouts, tokens); got {tuple(advantages_NT.shape)}"
        )
    is_own = ":" in name  # it need not use the mean of the group, nor its deviation
    is_by_token = returns_NT is not None or is_own
    text = f"{name} ({describe_estimator(name)})"
    estimated_N: list[list[Estimated]] = []
    for n, (calls, compared) in enumerate(zip(calls_N, compared_N, strict=True)):
        parts = [slice(call.start, call.end) for call in calls]
        advantages = iter(_cut(advantages_NT[n], parts))
        of_critic = returns_NT is not None and values_NT is not None
        returns = iter(_cut(returns_NT[n], parts) if of_critic and returns_NT is not None else [])
        values = iter(_cut(values_NT[n], parts) if values_NT is not None else [])
        said = iter(one.because for of_row in compared for one in of_row)
        if is_own:
            said = iter(f"{call.credit.reward or 0.0:.4g}" for call in calls)
        estimated_N.append(
            [
                _of_row(of_row, advantages, returns, values, is_by_token, text, said)
                for of_row in compared
            ]
        )
    return estimated_N


def _of_row(
    compared: Sequence[Advantage],
    advantages: "Iterator[list[float]]",
    returns: "Iterator[list[float]]",
    values: "Iterator[list[float]]",
    is_by_token: bool,
    about: str,
    said: "Iterator[str]",
) -> Estimated:
    tokens = [next(advantages) for _ in compared]
    given: list[Advantage] = []
    for each, of_call in zip(compared, tokens, strict=True):
        low, high, text = min(of_call), max(of_call), about
        if low != high:
            text += f"{mean_of_tokens(len(of_call))} from {low:.4g} to {high:.4g}"
        value = low if low == high else math.fsum(of_call) / len(of_call)
        because = f"{text}; its reward: {next(said)}"
        given.append(Advantage(value=value, group=each.group, because=because))
    number = len(tokens)
    return Estimated(
        given,
        tokens if is_by_token else [],
        [one for _, one in zip(range(number), returns, strict=False)],
        [one for _, one in zip(range(number), values, strict=False)],
    )


def _packed(
    laid: "Trajectories", masks: "Sequence[Tensor]", values: list[list[float]] | None
) -> "Tensor":
    """Numbers of rows' sampled tokens as those of rollouts' tokens; zeros of None."""
    values_NT = torch.zeros(laid.mask_NT.shape, dtype=torch.double)
    if values is None:
        return values_NT
    rows: list[Tensor] = []
    for mask, given in zip(masks, values, strict=True):
        row = torch.zeros(len(mask), dtype=torch.double)
        row[mask.bool()] = torch.tensor(given, dtype=torch.double)
        rows.append(row)
    packed_NT = pad_sequence(rows, batch_first=True)[laid.row_NT, laid.token_NT]
    return torch.where(laid.mask_NT, packed_NT, values_NT)


def _cut(values_T: "Tensor", parts: Sequence[slice]) -> list[list[float]]:
    values: list[float] = values_T.tolist()  # pyright: ignore
    return [values[part] for part in parts]
