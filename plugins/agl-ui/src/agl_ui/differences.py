"""What changed from one text to another, word by word."""

import difflib
import re
from dataclasses import dataclass
from typing import Literal

MOST_WORDS = 20_000
"""In both texts; longer ones are compared by lines."""


@dataclass(frozen=True)
class Piece:
    """A stretch of text that stands in both, or in one."""

    kind: Literal["same", "old", "new"]
    text: str


def differences(old: str, new: str) -> list[Piece]:
    """Both texts in pieces; without the new ones they are the old text, and the reverse.

    Long prompts take a second of computing: not for an event loop.
    """
    parts = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")  # a space by itself would be everywhere
    first, second = parts.findall(old), parts.findall(new)
    if len(first) + len(second) > MOST_WORDS:
        first, second = old.splitlines(keepends=True), new.splitlines(keepends=True)
    found: list[Piece] = []
    # With "autojunk" no piece begins at a word that is everywhere; without, the time is quadratic.
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=True)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            found.append(Piece("same", "".join(first[a:b])))
            continue
        found += [Piece("old", "".join(first[a:b]))] if b > a else []
        found += [Piece("new", "".join(second[c:d]))] if d > c else []
    return found
