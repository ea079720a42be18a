"""From training rows to rows for verl: split where asked for, cut to the limits, all accounted for.

``trajectory`` keeps the rows as the adapter made them: consecutive calls of an agent share a row as
long as each prompt begins with the exact tokens before it. ``transition`` makes a row of each call.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agl_records.ledger.ledger import Ledger
from agl_records.training_data import TrainingRow
from agl_verl.messages import Row
from agl_verl.rows import CallNote, RowNotes

Level = Literal["trajectory", "transition"]


@dataclass(frozen=True)
class Limits:
    """Longest sequences that verl gets, in tokens."""

    prompt: int
    response: int


def split(row: TrainingRow, level: Level) -> Iterator[TrainingRow]:
    """A row, or a row for each of its calls.

    Of a later call's row, what earlier calls sampled is part of the prompt.
    """
    if level == "trajectory":
        yield row
        return
    for number, (_, end) in enumerate(row.call_ranges):
        one = row.only([number])
        yield one.model_copy(
            update={"token_ids": one.token_ids[:end], "logprobs": one.logprobs[:end]}
        )


def fit(row: TrainingRow, limits: Limits, ledger: Ledger) -> TrainingRow | None:
    """The row with as many of its calls as the limits take; the others are excluded.

    A prompt is never cut: the model would be trained on what it has not seen. A response ends
    with the last call that fits whole.

    Returns:
        The row, or None when not even its first call fits.
    """
    start = row.call_ranges[0][0]
    if start > limits.prompt:
        detail = f"its prompt has {start} tokens, the limit is {limits.prompt}"
        ledger.exclude_row(row, "over_length", detail)
        return None
    fitting = [n for n, (_, end) in enumerate(row.call_ranges) if end - start <= limits.response]
    if len(fitting) == len(row.call_ids):
        return row
    for number, (_, end) in enumerate(row.call_ranges):
        if number not in fitting:
            detail = (
                f"the response up to its end has {end - start} tokens, the limit is "
                f"{limits.response}"
            )
            ledger.exclude_row(row.only([number]), "over_length", detail)
    if not fitting:
        return None
    cut = row.only(fitting)
    end = cut.call_ranges[-1][1]
    return cut.model_copy(update={"token_ids": cut.token_ids[:end], "logprobs": cut.logprobs[:end]})


def to_row(
    row: TrainingRow, session: int, number: int, reward: float, rewards: dict[str, float]
) -> Row:
    """A training row as verl gets it.

    Args:
        row: It has a reward for each of its calls.
        reward: Of the rollout.
    """
    start = row.call_ranges[0][0]
    end = row.call_ranges[-1][1]
    calls = [
        CallNote(start=begin - start, end=finish - start, credit=credit)
        for (begin, finish), credit in zip(row.call_ranges, row.credits, strict=True)
    ]
    return Row(
        session=session,
        number=number,
        rollout_id=row.rollout_id,
        prompt_ids=row.token_ids[:start],
        response_ids=row.token_ids[start:end],
        mask=row.loss_mask[start:end],
        logprobs=row.logprobs[start:end],
        notes=RowNotes(calls=calls, rewards=rewards),
        reward=reward,
        versions=versions(row),
    )


def versions(row: TrainingRow) -> tuple[int, int]:
    """Oldest and newest weights that sampled in a row; ``(0, 0)`` when nothing is known.

    The version of one call is ``"3"``, or ``"3-4"`` when the weights changed while it ran.
    """
    found = [
        int(part)
        for version in row.model_versions
        for part in (version or "").split("-")
        if part.isdecimal()
    ]
    return (min(found), max(found)) if found else (0, 0)
