"""Ids that carry their number, so that a store needs no index over text.

``ro-2a9f3c01d7`` is number 0x2a with eight random digits, which tell the records of one store from
those of another.
"""

import secrets

_RANDOM_DIGITS = 8


def make_id(prefix: str, number: int) -> str:
    """A new id, for instance ``make_id("ro", 42)``."""
    return f"{prefix}-{number:x}{secrets.token_hex(_RANDOM_DIGITS // 2)}"


def number_of(identifier: str) -> int:
    """The number in an id; -1 in what is none. The caller compares the whole id afterwards."""
    try:
        number = int(identifier[3:-_RANDOM_DIGITS], 16)
    except ValueError:
        return -1
    # Beyond SQLite's integers there are no numbers of ours.
    return number if 0 <= number < 1 << 62 else -1
