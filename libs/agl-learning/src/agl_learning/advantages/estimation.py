"""An estimator over the usable rows of a collection: its advantages by call, and by token."""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast

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
    for calls in calls_N:
        rewards = {call.credit.reward for call in calls}
        outcomes.append((rewards.pop() or 0.0) if len(rewards) == 1 else math.nan)
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
    given: Any = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    advantages_NT, returns_NT = cast("tuple[Tensor, Tensor | None]", given)
    _check_advantages(name, advantages_NT, laid)
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


def _cut(values_T: "Tensor", parts: Sequence[slice]) -> list[list[float]]:
    values: list[float] = values_T.tolist()  # pyright: ignore
    return [values[part] for part in parts]
