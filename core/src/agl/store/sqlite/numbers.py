"""Span numbers that are reserved in blocks, so that most reservations write nothing.

A client of 0.3 asks for a number before each span. The file keeps the end of the block; what is
left of it is kept here, and lost with the process, or with a transaction that is undone: numbers
then go on after the block, with a gap. Otherwise there are no gaps, for the writer takes a block
back before it gives out numbers itself.
"""

import threading
from collections.abc import Sequence

BLOCK = 16
_MAX_BLOCKS = 20_000

Key = tuple[str, str]
"""(rollout_id, attempt_id)."""


class NumberBlocks:
    """What is left of each attempt's block; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[Key, range] = {}

    def take(self, keys: Sequence[Key]) -> list[int] | None:
        """One number for each key, or None when a block is missing or too short for that."""
        numbers: list[int] = []
        with self._lock:
            left: dict[Key, range] = {}
            for key in keys:
                block = left.get(key, self._blocks.get(key))
                if not block:
                    return None
                numbers.append(block[0])
                left[key] = block[1:]
            self._blocks.update(left)
        return numbers

    def left(self, key: Key) -> range | None:
        """What is left of a block; it may be less the next moment."""
        return self._blocks.get(key)

    def take_back(self, key: Key) -> range | None:
        """The same, and nobody gets numbers of it any more."""
        with self._lock:
            return self._blocks.pop(key, None)

    def give(self, key: Key, block: range) -> None:
        """Make a block, which the file has reserved."""
        with self._lock:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = block
