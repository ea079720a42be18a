"""What one of several learning processes computes, and sums over all of them."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
WAIT = timedelta(minutes=30)
"""For a process that is behind; one that has ended is noticed at once."""


class Share:
    """Which of ``size`` processes this one is, and the sums over all of them."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        torch_distributed: Any = distributed  # its types leave out what is made in C++
        gloo = torch_distributed.ProcessGroupGloo
        # A group of its own, so that torch's default one stays the user's; on loopback alone.
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = WAIT
        store = torch_distributed.FileStore(str(Path(folder) / "meeting"), size)
        self._group = gloo(store, rank, size, options)

    def of(self, samples: Sequence[T]) -> Sequence[T]:
        """Those that this process computes; none, where there are fewer than processes."""
        return samples[self.rank :: self.size]

    def add_up(self, tensor: "Tensor") -> "Tensor":
        """The sum over all processes, of the same shape."""
        whole = tensor.detach().cpu()
        self._group.allreduce([whole]).wait()
        return whole.to(tensor.device)

    def add_up_gradients(self, parameters: "Sequence[Tensor]") -> None:
        """Give each parameter the sum of its gradients; one that has none anywhere keeps none."""
        zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        has = torch.tensor([float(one.grad is not None) for one in parameters])
        flat = self.add_up(torch.cat([has, *(one.reshape(-1).cpu() for one in zeros)]))
        counts = flat[: len(parameters)].tolist()
        parts = flat[len(parameters) :].split([one.numel() for one in parameters])
        for one, count, part in zip(parameters, counts, parts, strict=True):
            one.grad = part.view_as(one).to(one.device) if count else None

    def add_up_numbers(self, numbers: dict[str, float]) -> dict[str, float]:
        """The sum over all processes of each number."""
        sums = self.add_up(torch.tensor(list(numbers.values()), dtype=torch.float64))
        return dict(zip(numbers, sums.tolist(), strict=True))
