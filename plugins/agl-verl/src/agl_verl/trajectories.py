"""Sorts the rows of a verl batch into rollouts, by their keys and by what agl noted of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from agl.errors import AlgorithmError
from agl_learning.trajectories import Call, Trajectories, lay_out
from agl_verl.rows import CallNote, RowNotes

if TYPE_CHECKING:
    from torch import Tensor


def trajectories(
    keys: Sequence[str],
    padding: Sequence[bool],
    mask_BL: "Tensor",
    notes: Sequence[str] | None = None,
) -> Trajectories:
    """Sort the rows of a batch into rollouts.

    Args:
        keys: Per row ``{uid}_{session}_{index}``.
        padding: Per row, whether verl added it to fill up the batch.
        mask_BL: 1 on sampled tokens.
        notes: Per row the field ``agl_row``.

    Raises:
        AlgorithmError: A key is not of this form, a row is there twice, no row is a rollout's, or
            a note does not fit its row.
    """
    members: dict[tuple[str, str], dict[int, int]] = {}
    for number, (key, is_padding) in enumerate(zip(keys, padding, strict=True)):
        if not is_padding:
            task, session, index = _parts(key)
            rows = members.setdefault((task, session), {})
            if index in rows:
                raise AlgorithmError(f"row {key!r} is in the batch twice: {rows[index]}, {number}")
            rows[index] = number
    if not members:
        raise AlgorithmError(f"the batch has {len(keys)} rows, and all of them are padding")
    rows = [[found[index] for index in sorted(found)] for found in members.values()]
    sampled = mask_BL.bool().cpu()
    read = None if notes is None else [RowNotes.model_validate_json(note) for note in notes]
    has_calls = read is not None and any(read[row].calls for numbers in rows for row in numbers)
    return lay_out(
        rows,
        mask_BL,
        names=[f"{task}_{session}" for task, session in members],
        tasks=[task for task, _ in members],
        calls=[_calls(numbers, keys, sampled, read) for numbers in rows]
        if read is not None and has_calls
        else None,
        rewards=[read[numbers[-1]].rewards for numbers in rows] if read else None,
    )


def _parts(key: str) -> tuple[str, str, int]:
    task, session, index = [*key.rsplit("_", 2), "", ""][:3]
    if not (task and session and index.isdigit()):
        raise AlgorithmError(
            f"row {key!r}: cannot tell its rollout; expected a key '{{uid}}_{{session}}_{{index}}'"
        )
    return task, session, int(index)


def _calls(
    numbers: Sequence[int], keys: Sequence[str], sampled_BL: "Tensor", read: Sequence[RowNotes]
) -> list[Call]:
    """The calls of one rollout, checked to cover its sampled tokens exactly."""
    calls: list[Call] = []
    offset = 0
    for number in numbers:
        row = sampled_BL[number]
        covered = torch.zeros_like(row)
        for note in read[number].calls:
            _check(note, keys[number], row, covered)
            covered[note.start : note.end] = True
            length = note.end - note.start
            calls.append(Call(offset, offset + length, note.credit))
            offset += length
        if not torch.equal(covered, row):
            raise AlgorithmError(
                f"row {keys[number]!r}: its calls cover {int(covered.sum())} sampled tokens, its "
                f"response_mask has {int(row.sum())}; every trained token needs a call with credit"
            )
    return calls


def _check(note: CallNote, key: str, row_L: "Tensor", covered_L: "Tensor") -> None:
    span = slice(note.start, note.end)
    if not 0 <= note.start < note.end <= len(row_L) or covered_L[note.start :].any():
        raise AlgorithmError(
            f"row {key!r}: a call at response tokens {note.start} to {note.end} is out of the "
            f"row's {len(row_L)}, empty, or not after the call before it"
        )
    if not row_L[span].all():
        raise AlgorithmError(
            f"row {key!r}: response_mask has zeros within the call at response tokens "
            f"{note.start} to {note.end}"
        )
    if note.credit.reward is None:
        raise AlgorithmError(
            f"row {key!r}: the call at response tokens {note.start} to {note.end} got no reward "
            f"({note.credit.because or note.credit.rule}); leave it out of calls and response_mask"
        )
