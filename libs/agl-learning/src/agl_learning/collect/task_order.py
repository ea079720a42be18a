"""Which tasks come next: every task once before any comes again, in an order of their own."""

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

from agl.utils.json_values import to_json_text


def digest(tasks: Sequence[Any]) -> str:
    """Tells whether tasks are those of an earlier process, in the same order.

    The order of keys within a task tells nothing.
    """
    text = json.dumps(json.loads(to_json_text(tasks)), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TaskOrder:
    """An endless shuffled order of the indices 0 to ``size`` - 1.

    Args:
        size: How many tasks there are.
        seed: Of the shuffles.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._random = random.Random(seed)
        self._ahead: list[int] = []

    def take(self, count: int) -> list[int]:
        """The next ``count`` indices."""
        while len(self._ahead) < count:
            again = list(range(self._size))
            self._random.shuffle(again)
            self._ahead += again
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def state(self) -> dict[str, Any]:
        """What ``restore`` takes; JSON values."""
        return {"size": self._size, "ahead": [*self._ahead], "random": self._random.getstate()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on where ``state`` was taken; another number of tasks begins a new shuffle."""
        if state is None:
            return
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
        self._ahead = list(state["ahead"]) if state["size"] == self._size else []
