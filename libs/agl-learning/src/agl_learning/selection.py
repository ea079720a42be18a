"""Which calls of an iteration are trained: the best, with a reason for each of the others."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agl.errors import AlgorithmError
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import usable_rows, why_nothing
from agl_records.training_data import TrainingRow

IGNORED = -100
"""Label of a token that is not trained; what the loss of transformers leaves out."""


@dataclass(frozen=True, eq=False)
class Part:
    """The calls of a row that have one reward."""

    row: TrainingRow
    number: int
    """Of the row, in its rollout."""
    calls: list[int]
    """Positions in the row."""
    reward: float

    def only(self) -> TrainingRow:
        """The row with these calls."""
        return self.row.only(self.calls)


def select_best(
    collected: Collected,
    iteration: int,
    *,
    keep_fraction: float,
    min_reward: float | None,
    max_length: int | None,
    seed: int,
    make: Callable[[Any], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The best calls, in examples of one row each, shuffled; every call goes into one bin.

    Credit is given to calls, so it is calls that are chosen; none of a penalised rollout is. Those
    of a row with the same reward stay together: where all of a rollout have one reward, rows are
    chosen. Parts below
    ``min_reward`` go first, then those that end beyond ``max_length``. Of the others
    ``keep_fraction`` stay, best reward first, and chance decides between equal ones. What the other
    calls of a row sampled is context, and not trained.

    Args:
        collected: Of the iteration.
        iteration: Its number.
        keep_fraction: Above 0, up to 1; rounded down, and one part stays in any case.
        min_reward: None for no threshold.
        max_length: Of a row up to its last trained token; None for no limit.
        seed: Of the run; every iteration shuffles in another way.
        make: The example of a row that has only its trained calls; None takes ``example_of``.

    Returns:
        One example per row, and at least one.

    Raises:
        AlgorithmError: Nothing can be trained; it says what there was instead.
    """
    chance = random.Random(f"{seed}/{iteration}")
    ledger = collected.ledger
    parts: list[Part] = []
    for one, numbered in usable_rows(collected):
        for number, row in numbered:
            if one.penalty is not None:
                why = "its rollout failed and is penalised, and what is chosen here is imitated"
                ledger.exclude_row(row, "failed_attempt", why)
                continue
            calls: defaultdict[float, list[int]] = defaultdict(list)
            for call, credit in enumerate(row.credits):
                calls[credit.reward or 0.0].append(call)
            for reward, of_reward in calls.items():
                part = Part(row, number, of_reward, reward)
                length = 0 if max_length is None else row.call_ranges[part.calls[-1]][1]
                if min_reward is not None and part.reward < min_reward:
                    ledger.exclude_row(
                        part.only(),
                        "below_threshold",
                        f"its reward is {part.reward:g}, min_reward is {min_reward:g}",
                    )
                elif max_length is not None and length > max_length:
                    ledger.exclude_row(
                        part.only(), "over_length", f"{length} tokens, the limit is {max_length}"
                    )
                else:
                    parts.append(part)
    if not parts:
        reasons = ledger.reasons()
        message = f"iteration {iteration}: nothing can be trained: {why_nothing(collected)}"
        if min_reward is not None and "below_threshold" in reasons and "over_length" not in reasons:
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
        raise AlgorithmError(message)
    chance.shuffle(parts)
    parts.sort(key=lambda part: part.reward, reverse=True)
    # As it is written: 0.29 of 100 is 29, though 0.29 * 100 is a little less.
    count = max(1, int(Fraction(str(keep_fraction)) * len(parts)))
    for part in parts[count:]:
        ledger.exclude_row(
            part.only(),
            "not_selected",
            f"{count} of {len(parts)} are kept, and none is better than those",
        )
    kept: defaultdict[tuple[str, int], list[Part]] = defaultdict(list)
    for part in parts[:count]:
        kept[part.row.rollout_id, part.number].append(part)
    rows: list[TrainingRow] = []
    for (_, number), of_row in kept.items():
        row = of_row[0].row.only({call for part in of_row for call in part.calls})
        ledger.train(row, number=number)
        rows.append(row)
    chance.shuffle(rows)
    return [(make or example_of)(row) for row in rows]


def example_of(row: TrainingRow) -> dict[str, Any]:
    """A row for a trainer: ``input_ids`` as recorded, and ``labels`` that train its calls.

    What follows the last of them is left out: it would change nothing.

    Example:
        Tokens ``[5, 6, 7, 8, 9]`` of which a call sampled the third and the fourth: ``input_ids``
        ``[5, 6, 7, 8]``, labels ``[-100, -100, 7, 8]``.
    """
    end = row.call_ranges[-1][1]
    labels = [
        token if on else IGNORED for token, on in zip(row.token_ids, row.loss_mask, strict=True)
    ]
    return {
        "input_ids": row.token_ids[:end],
        "labels": labels[:end],
        "reward": row.reward,
        "rollout_id": row.rollout_id,
    }


def _describe(rewards: Sequence[float]) -> str:
    if not rewards:
        return "no rollout has a reward"
    ranked = sorted(rewards, reverse=True)
    best = ", ".join(f"{reward:g}" for reward in ranked[:5])
    return (
        f"of {len(ranked)} rewards the best are {best}, the mean is "
        f"{sum(ranked) / len(ranked):.3f}, the lowest {ranked[-1]:g}"
    )
