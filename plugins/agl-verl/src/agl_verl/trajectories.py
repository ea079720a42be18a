"""Sorts the rows of a verl batch into rollouts, by their keys and by what agl noted of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agl.errors import AlgorithmError
from agl_learning.advantages.trajectories import Call, Trajectories, lay_out
from agl_verl.rows import RowNotes

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
    read = None if notes is None else [RowNotes.model_validate_json(note) for note in notes]
    has_calls = read is not None and any(read[row].calls for numbers in rows for row in numbers)
    return lay_out(
        rows,
        mask_BL,
        names=[f"{task}_{session}" for task, session in members],
        tasks=[task for task, _ in members],
        calls=[[Call(one.start, one.end, one.credit) for one in note.calls] for note in read]
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
