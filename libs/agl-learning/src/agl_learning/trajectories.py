"""Rollouts as one line of sampled tokens each, whatever rows they lie in.

Shapes: ``B`` rows of a padded batch with ``L`` response tokens, ``N`` rollouts with up to ``T``
sampled tokens. Sampled tokens of a rollout stand one after the other, first those of its first
row; what tools wrote between them is not there. Rows of padding belong to no rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

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
    """Of the rollouts, for messages."""
    tasks: list[str]
    """Per rollout its task; siblings have the same."""
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
    """Per rollout; None where all tokens of a rollout share its reward."""
    rewards: list[dict[str, float]]
    """Per rollout, the dimensions of its reward; empty where nobody compares them."""

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


def lay_out(
    rows: Sequence[Sequence[int]],
    mask_BL: "Tensor",
    *,
    names: list[str],
    tasks: list[str],
    calls: list[list[Call]] | None = None,
    rewards: list[dict[str, float]] | None = None,
) -> Trajectories:
    """Find the sampled tokens of each rollout in a padded batch.

    Args:
        rows: Per rollout its rows in time, as numbers in the batch; at least one.
        mask_BL: 1 on sampled tokens.
        names: See ``Trajectories``, as the others.
        tasks: One per rollout.
        calls: One list per rollout.
        rewards: One per rollout; None: none has dimensions.
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
        calls=calls,
        rewards=rewards or [{} for _ in rows],
    )
