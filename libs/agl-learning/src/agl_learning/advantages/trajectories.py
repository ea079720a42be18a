"""Rollouts as one line of sampled tokens each, whatever rows they lie in.

Shapes: ``B`` rows of a padded batch with ``L`` response tokens, ``N`` rollouts with up to ``T``
sampled tokens. Sampled tokens of a rollout stand one after the other, first those of its first
row; what tools wrote between them is not there. Rows of padding belong to no rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agl.errors import AlgorithmError
from agl_records.types import Credit


@dataclass(frozen=True)
class Call:
    """One call: sampled tokens ``start`` to ``end`` of its rollout."""

    start: int
    end: int
    credit: Credit


@dataclass(frozen=True)
class Trajectories:
    """Where the sampled tokens of each rollout are in the batch."""

    names: list[str]
    """Of the rollouts, for messages."""
    tasks: list[str]
    """Per rollout its task; siblings have the same."""
    rows: list[list[int]]
    """Per rollout its rows in time, as numbers in the batch."""
    shape: tuple[int, int]
    """B and L."""
    mask_NT: Tensor
    """Whether rollout n has a token t."""
    row_NT: Tensor
    token_NT: Tensor
    """Row and response position of each; 0 where there is none."""
    calls: list[list[Call]] | None
    """Per rollout; None where all tokens of a rollout share its reward."""
    rewards: list[dict[str, float]]
    """Per rollout, the dimensions of its reward; empty where nobody compares them."""

    @property
    def lengths_N(self) -> Tensor:
        """Sampled tokens per rollout."""
        return self.mask_NT.sum(-1)

    def pack(self, values_BL: Tensor) -> Tensor:
        """Values of rows' tokens as values of rollouts' tokens, float, 0 where there is none."""
        picked_NT = values_BL[self.row_NT, self.token_NT].float()
        return torch.where(self.mask_NT, picked_NT, picked_NT.new_zeros(()))

    def unpack(self, values_NT: Tensor) -> Tensor:
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


def lay_out(
    rows: Sequence[Sequence[int]],
    mask_BL: Tensor,
    *,
    names: list[str],
    tasks: list[str],
    calls: Sequence[Sequence[Call]] | None = None,
    rewards: list[dict[str, float]] | None = None,
) -> Trajectories:
    """Find the sampled tokens of each rollout in a padded batch.

    Args:
        rows: Per rollout its rows in time, as numbers in the batch; at least one.
        mask_BL: The batch's ``response_mask``: 1 on sampled tokens.
        names: One per rollout.
        tasks: One per rollout.
        calls: Per row of the batch its calls, at positions in the row; None: there are no credits.
        rewards: Per rollout its dimensions; None: none has any.

    Raises:
        AlgorithmError: The calls of a row are not its sampled tokens, or have no reward.
    """
    sampled_BL = mask_BL.bool().cpu()
    places: list[Tensor] = []
    for numbers in rows:
        within = sampled_BL[list(numbers)].nonzero()
        places.append(torch.stack([torch.tensor(numbers)[within[:, 0]], within[:, 1]]))
    width = max(1, *(place.shape[1] for place in places))
    index_2NT = torch.zeros(2, len(rows), width, dtype=torch.long)
    mask_NT = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, place in enumerate(places):
        index_2NT[:, number, : place.shape[1]] = place
        mask_NT[number, : place.shape[1]] = True
    return Trajectories(
        names=names,
        tasks=tasks,
        rows=[list(numbers) for numbers in rows],
        shape=(int(mask_BL.shape[0]), int(mask_BL.shape[1])),
        mask_NT=mask_NT,
        row_NT=index_2NT[0],
        token_NT=index_2NT[1],
        calls=None
        if calls is None
        else [
            _of_rollout(name, [(calls[number], sampled_BL[number]) for number in numbers])
            for name, numbers in zip(names, rows, strict=True)
        ],
        rewards=rewards or [{} for _ in rows],
    )


def _of_rollout(name: str, rows: "Sequence[tuple[Sequence[Call], Tensor]]") -> list[Call]:
    """The calls of one rollout, checked to cover its sampled tokens exactly."""
    found: list[Call] = []
    offset = 0
    for number, (calls, row_L) in enumerate(rows):
        where = f"row {number} of rollout {name!r}"
        covered_L = torch.zeros_like(row_L)
        for call in calls:
            _check(call, where, row_L, covered_L)
            covered_L[call.start : call.end] = True
            length = call.end - call.start
            found.append(Call(offset, offset + length, call.credit))
            offset += length
        if not torch.equal(covered_L, row_L):
            raise AlgorithmError(
                f"{where}: its calls cover {int(covered_L.sum())} sampled tokens, its "
                f"response_mask has {int(row_L.sum())}; every trained token needs a call with "
                "credit"
            )
    return found


def _check(call: Call, where: str, row_L: Tensor, covered_L: Tensor) -> None:
    start, end = call.start, call.end
    if not 0 <= start < end <= len(row_L) or covered_L[start:].any():
        raise AlgorithmError(
            f"{where}: a call at response tokens {start} to {end} is out of the row's "
            f"{len(row_L)}, empty, or not after the call before it"
        )
    if not row_L[start:end].all():
        raise AlgorithmError(
            f"{where}: response_mask has zeros within the call at response tokens {start} to {end}"
        )
    if call.credit.reward is None:
        raise AlgorithmError(
            f"{where}: the call at response tokens {start} to {end} got no reward "
            f"({call.credit.because or call.credit.rule}); leave it out of calls and response_mask"
        )
