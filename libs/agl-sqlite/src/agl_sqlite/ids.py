"""Ids that carry their number, so that a store needs no index over text.

``ro-2a9f3c01d7`` is number 0x2a with eight random digits, which tell the records of one store from
those of another.
"""

import os
import random
import re
from functools import lru_cache

_RANDOM_DIGITS = 8
_LONGEST = 12
"""Hexadecimal digits of a number."""
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


def id_begins(column: str, id_column: str, beginning: str) -> str:
    """The condition that an id begins so, by the number in it, which is the key of its record.

    A beginning of m digits has the number, or the first part of it.

    Args:
        column: Of the number.
        id_column: Of the id.
        beginning: ``ro-`` or ``at-``, and hexadecimal digits, possibly none.
    """
    digits = beginning[3:]
    if not re.fullmatch("[0-9a-f]*", digits):
        return "0"
    if not digits:
        return "1"
    found = [f"{column} = {int(digits[:at], 16)}" for at in range(1, min(len(digits), _LONGEST))]
    for more in range(_LONGEST - len(digits) + 1):
        low = int(digits, 16) << 4 * more
        found.append(f"{column} BETWEEN {low} AND {low + (1 << 4 * more) - 1}")
    # The number alone says nothing of the digits behind it.
    return f"({' OR '.join(found)}) AND substr({id_column}, 1, {len(beginning)}) = '{beginning}'"
