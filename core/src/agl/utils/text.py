"""Text from agents and their exceptions, made fit to be stored and logged."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST_TEXT = 65_536
"""Characters of an error's message, and of its traceback, that are kept."""
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and marks that turn the direction of what follows."""


def clean(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which UTF-8 cannot hold.

    A model that breaks off within an emoji of a tool call leaves one: ``json.loads`` lets it pass.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def printable(text: str) -> str:
    """The text with what a terminal would obey written out as escapes."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def capped(text: str, limit: int = LONGEST_TEXT) -> str:
    """At most about ``limit`` characters: where there are more, the beginning and the end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... ({left_out} characters left out) ...\n{text[-half:]}"


def shorten(text: str, limit: int = 80) -> str:
    """The text, or its beginning and a mark that there is more; for messages."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest known name; empty when none is near."""
    near = get_close_matches(name, [*known], n=1, cutoff=0.7)
    near = near or [n for n in known if sorted(n) == sorted(name) or n.endswith(f"_{name}")]
    return f" Did you mean {near[0]!r}?" if near else ""


def full_name_of(kind: type[Any]) -> str:
    """The name of a class with that of its module, unless that is ``builtins``."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def describe(error: BaseException) -> str:
    """What an exception says, or how it was made if it says nothing."""
    try:
        return clean(capped(str(error) or repr(error)))
    except Exception as failure:
        return f"(its text cannot be made: {type(failure).__qualname__})"
