"""Ids that carry their number, so that a store needs no index over text.

``ro-2a9f3c01d7`` is number 0x2a with eight random digits, which tell the records of one store from
those of another.
"""

import os
import random
from functools import lru_cache

_RANDOM_DIGITS = 8
# One of our own, which agents that seed the common one do not disturb. Asking the system for each
# id would cost more than all the rest of it.
_random = random.Random(os.urandom(32))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def make_id(prefix: str, number: int) -> str:
    """A new id, for instance ``make_id("ro", 42)``."""
    return f"{prefix}-{number:x}{_random.getrandbits(4 * _RANDOM_DIGITS):0{_RANDOM_DIGITS}x}"


@lru_cache(maxsize=1024)  # a step asks several times for the same one
def number_of(identifier: str) -> int:
    """The number in an id; -1 in what is none. The caller compares the whole id afterwards."""
    try:
        number = int(identifier[3:-_RANDOM_DIGITS], 16)
    except ValueError:
        return -1
    # Beyond SQLite's integers there are no numbers of ours.
    return number if 0 <= number < 1 << 62 else -1
