"""Which rows of an iteration are trained: the best, with a reason for each of the others."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agl.accounts import usable_rows, why_nothing
from agl.errors import AlgorithmError

if TYPE_CHECKING:
    from agl.collect import Collected
    from agl.types import TrainingRow

IGNORED = -100
"""Label of a token that is not trained; what the loss of transformers leaves out."""


def select_best(
    collected: "Collected",
    *,
    keep_fraction: float,
    min_reward: float | None,
    max_length: int | None,
    seed: str,
    make: Callable[[Any], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The best rows, shuffled, as examples; every call goes into one bin of the ledger.

    Rows that are too long or below ``min_reward`` go first. Of the others ``keep_fraction`` stay,
    best reward first, and chance decides between equal ones.

    Args:
        collected: Of one iteration.
        keep_fraction: Above 0, up to 1; one row stays in any case.
        min_reward: None for no threshold.
        max_length: Of a row, in tokens; None for no limit.
        seed: Of the shuffles.
        make: The example of a row; None takes ``example_of``.

    Returns:
        One example per row; empty when nothing can be trained.
    """
    chance = random.Random(seed)
    ledger = collected.ledger
    rows: list[tuple[int, TrainingRow]] = []
    for _, numbered in usable_rows(collected):
        for number, row in numbered:
            length, reward = len(row.token_ids), row.reward or 0.0
            if max_length is not None and length > max_length:
                ledger.exclude_row(
                    row, "over_length", f"{length} tokens, the limit is {max_length}"
                )
            elif min_reward is not None and reward < min_reward:
                ledger.exclude_row(
                    row,
                    "below_threshold",
                    f"its reward is {reward:g}, min_reward is {min_reward:g}",
                )
            else:
                rows.append((number, row))
    chance.shuffle(rows)
    rows.sort(key=lambda numbered: numbered[1].reward or 0.0, reverse=True)
    count = max(1, int(len(rows) * keep_fraction))
    for _, row in rows[count:]:
        ledger.exclude_row(
            row,
            "not_selected",
            f"{count} of {len(rows)} rows are kept, and none is better than those",
        )
    kept = rows[:count]
    for number, row in kept:
        ledger.train(row, number=number)
    chance.shuffle(kept)
    return [(make or example_of)(row) for _, row in kept]


def example_of(row: "TrainingRow") -> dict[str, Any]:
    """A row for a trainer: ``input_ids`` as recorded, and ``labels`` that train what was sampled.

    Example:
        Tokens ``[5, 6, 7, 8]`` of which the model sampled the last two: labels
        ``[-100, -100, 7, 8]``.
    """
    mask = row.loss_mask
    labels = [token if on else IGNORED for token, on in zip(row.token_ids, mask, strict=True)]
    return {
        "input_ids": row.token_ids,
        "labels": labels,
        "reward": row.reward,
        "rollout_id": row.rollout_id,
    }


def nothing_selected(
    collected: "Collected", iteration: int, min_reward: float | None
) -> AlgorithmError:
    """The error of an iteration without a single example; it says what there was instead."""
    reasons = collected.ledger.reasons()
    message = f"iteration {iteration}: nothing can be trained: {why_nothing(collected)}"
    if min_reward is not None and "below_threshold" in reasons:
        message = (
            f"iteration {iteration}: no rollout reached min_reward={min_reward:g}: "
            f"{_describe(collected.rewards)}. Lower min_reward, run more rollouts_per_task, or "
            "begin with easier tasks"
        )
    elif "no_token_ids" in reasons:
        message += (
            ". Training needs the token ids that the server sampled. The gateway asks for them "
            "(return_token_ids) and this server gave none: take vLLM 0.10.2 or newer, or "
            "'agl serve', and for an address of your own a server that knows return_token_ids"
        )
    return AlgorithmError(message)


def _describe(rewards: Sequence[float]) -> str:
    if not rewards:
        return "no rollout has a reward"
    ranked = sorted(rewards, reverse=True)
    best = ", ".join(f"{reward:g}" for reward in ranked[:5])
    return (
        f"of {len(ranked)} rewards the best are {best}, the mean is "
        f"{sum(ranked) / len(ranked):.3f}, the lowest {ranked[-1]:g}"
    )
