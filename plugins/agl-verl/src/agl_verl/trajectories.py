"""Rollouts as one line of sampled tokens each, whatever rows they lie in.

Shapes: ``B`` rows of a padded verl batch with ``L`` response tokens, ``N`` rollouts with up to
``T`` sampled tokens. Sampled tokens of a rollout stand one after the other, first those of its
first row; what tools wrote between them is not there. Rows of padding belong to no rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agl.errors import AlgorithmError
from agl_verl.rows import CallNote, RowNotes

if TYPE_CHECKING:
    from torch import Tensor

    from agl.types import Credit


@dataclass(frozen=True)
class Call:
    """One call: sampled tokens ``start`` to ``end`` of its rollout."""

    start: int
    end: int
    credit: "Credit"


@dataclass(frozen=True)
class Trajectories:
    """Where the sampled tokens of each rollout are in the batch."""

    names: list[str]
    """Per rollout ``{uid}_{session}``."""
    tasks: list[str]
    """Per rollout its ``uid``; siblings have the same."""
    rows: list[list[int]]
    """Per rollout its rows in time, as numbers in the batch."""
    shape: tuple[int, int]
    """B and L."""
    mask_NT: "Tensor"
    """Whether rollout n has a token t."""
    row_NT: "Tensor"
    token_NT: "Tensor"
    """Row and response position of each; 0 where there is none."""
    calls: list[list[Call]] | None
    """Per rollout, where agl noted them."""
    rewards: list[dict[str, float]]
    """Per rollout, the dimensions of its reward; empty where none were noted."""

    @property
    def lengths_N(self) -> "Tensor":
        """Sampled tokens per rollout."""
        return self.mask_NT.sum(-1)

    @property
    def last_rows_N(self) -> "Tensor":
        """The last row of each rollout."""
        return torch.tensor([rows[-1] for rows in self.rows], dtype=torch.long)

    def pack(self, values_BL: "Tensor") -> "Tensor":
        """Values of rows' tokens as values of rollouts' tokens, float, 0 where there is none."""
        picked_NT = values_BL[self.row_NT, self.token_NT].float()
        return torch.where(self.mask_NT, picked_NT, picked_NT.new_zeros(()))

    def unpack(self, values_NT: "Tensor") -> "Tensor":
        """The inverse of ``pack``; 0 on every token that no rollout sampled."""
        values_BL = values_NT.new_zeros(self.shape)
        mask_NT = self.mask_NT
        values_BL[self.row_NT[mask_NT], self.token_NT[mask_NT]] = values_NT[mask_NT]
        return values_BL

    def by_task(self) -> dict[str, list[int]]:
        """Task -> its rollouts."""
        groups: dict[str, list[int]] = {}
        for number, task in enumerate(self.tasks):
            groups.setdefault(task, []).append(number)
        return groups


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
    places: list[Tensor] = []
    for numbers in rows:
        within = sampled[numbers].nonzero()
        places.append(torch.stack([torch.tensor(numbers)[within[:, 0]], within[:, 1]]))
    width = max(1, *(place.shape[1] for place in places))
    index_2NT = torch.zeros(2, len(rows), width, dtype=torch.long)
    mask_NT = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, place in enumerate(places):
        index_2NT[:, number, : place.shape[1]] = place
        mask_NT[number, : place.shape[1]] = True
    read = None if notes is None else [RowNotes.model_validate_json(note) for note in notes]
    has_calls = read is not None and any(read[row].calls for numbers in rows for row in numbers)
    return Trajectories(
        names=[f"{task}_{session}" for task, session in members],
        tasks=[task for task, _ in members],
        rows=rows,
        shape=(int(mask_BL.shape[0]), int(mask_BL.shape[1])),
        mask_NT=mask_NT,
        row_NT=index_2NT[0],
        token_NT=index_2NT[1],
        calls=[_calls(numbers, keys, sampled, read) for numbers in rows]
        if read is not None and has_calls
        else None,
        rewards=[read[numbers[-1]].rewards if read else {} for numbers in rows],
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
