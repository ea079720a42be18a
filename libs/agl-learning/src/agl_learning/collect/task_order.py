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
        self._size, self._random = size, random.Random(seed)
        self._order: list[int] = []

    def take(self, start: int, count: int) -> list[int]:
        """The ``count`` indices from position ``start`` on."""
        while len(self._order) < start + count:
            again = list(range(self._size))
            self._random.shuffle(again)
            self._order += again
        return self._order[start : start + count]
