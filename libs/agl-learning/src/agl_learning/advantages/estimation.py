"""An estimator over the usable rows of a collection: its advantages by call, and by token."""

import math
from collections.abc import Sequence
from itertools import count, groupby, islice
from reprlib import repr as short
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.comparisons import EstimatorFunction, Inputs
from agl_learning.advantages.estimator_option import Estimated, Foreseen, describe_estimator
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_learning.advantages.trajectories import Call, Trajectories, lay_out
from agl_learning.collect.results import Ended
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage


def estimate(
    estimator: EstimatorFunction,
    members: Sequence[tuple[Ended, list[tuple[int, TrainingRow]]]],
    options: Any,
    foreseen: Foreseen | None,
) -> list[list[Estimated]]:
    """Advantages by an estimator, that of ``options``, per rollout and row.

    ``members`` are at least one rollout with its usable rows, each with its place among all;
    siblings follow each other. ``foreseen`` has the rows in their order here.

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
    if name == "gdpo" and model.penalties is not None:
        raise ConfigError("'gdpo' compares dimensions of the reward, and takes no penalties")
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
    penalties_N: list[float] = inputs.penalties_NT.sum(-1).tolist()  # pyright: ignore
    is_penalised = model.penalties is not None and name != "reverse_kl"  # which takes them alone
    compared_N: list[list[list[Advantage]]] = []  # for their sentences about the rewards
    for _, siblings in groupby(zip(members, penalties_N, strict=True), lambda one: one[0][0].group):
        rows_G = [
            [_with_penalty(row, penalty) if is_penalised else row for _, row in numbered]
            for (_, numbered), penalty in siblings
        ]
        compared_N += sibling_advantages(rows_G)
    estimated_N: list[list[Estimated]] = []
    for n, (calls, compared) in enumerate(zip(calls_N, compared_N, strict=True)):
        rest, of_rows = iter(calls), list[Estimated]()
        for of_row in compared:
            spans = [*islice(rest, len(of_row))]
            tokens = _cut(advantages_NT, n, spans)
            cost = f"; penalties of its rollout: {penalties_N[n] + 0.0:.4g}" if is_penalised else ""
            given: list[Advantage] = []
            for each, of_call, call in zip(of_row, tokens, spans, strict=True):
                reward = f"{call.credit.reward or 0.0:.4g}{cost}"
                if not is_own:
                    reward = f"{reward}; their sum: {each.because}" if cost else each.because
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
                        is_foreseen=model != Foreseen(),
                    )
                )
            returns = [] if values_NT is None else _cut(returns_NT, n, spans)
            by_token = tokens if is_by_token else []
            of_rows.append(Estimated(given, by_token, returns, _cut(values_NT, n, spans)))
        estimated_N.append(of_rows)
    return estimated_N


def _with_penalty(row: TrainingRow, penalty: float) -> TrainingRow:
    """With rewards as those who compare siblings take them."""
    given = [(each, (each.reward or 0.0) + penalty) for each in row.credits]
    credits = [each.model_copy(update={"reward": reward}) for each, reward in given]
    return row.model_copy(update={"credits": credits})


def _check_advantages(name: str, given: Any, laid: Trajectories) -> None:
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
    laid: Trajectories, masks: Sequence[Tensor], values: list[list[float]] | None
) -> Tensor:
    """Numbers of rows' sampled tokens as those of rollouts' tokens; zeros of None."""
    values_NT = torch.zeros(laid.mask_NT.shape, dtype=torch.double)
    if values is None:
        return values_NT
    rows: list[Tensor] = []
    if len(values) != len(masks):
        raise ConfigError(f"foresee: expected numbers for {len(masks)} rows; got {len(values)}")
    for number, (mask, given) in enumerate(zip(masks, values, strict=True)):
        row, count = torch.zeros(len(mask), dtype=torch.double), int(mask.sum())
        try:
            told = torch.as_tensor(given, dtype=torch.double)
        except (TypeError, ValueError, RuntimeError):
            told = torch.empty(0)
        if told.shape != (count,) or not told.isfinite().all():
            raise ConfigError(
                f"foresee: expected {count} finite numbers for row {number}, one per sampled "
                f"token; got {short(given)}"
            )
        row[mask.bool()] = told
        rows.append(row)
    packed_NT = pad_sequence(rows, batch_first=True)[laid.row_NT, laid.token_NT]
    return torch.where(laid.mask_NT, packed_NT, values_NT)


def _cut(values_NT: Tensor | None, n: int, calls: Sequence[Call]) -> list[list[float]]:
    """The values of a rollout's tokens, per call; none of None."""
    if values_NT is None:
        return []
    return [values_NT[n, one.start : one.end].tolist() for one in calls]  # pyright: ignore
