"""Texts that end an answer."""

from collections.abc import Callable, Sequence


def first_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """``text`` up to the earliest of the stop texts, and that one; all of it and None without."""
    hits = [(text.index(candidate), candidate) for candidate in stop if candidate in text]
    position, found = min(hits, default=(len(text), None))
    return text[:position], found


def may_stop(
    token_ids: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> bool:
    """Whether the newest token may complete one of the stop texts; decodes the end alone."""
    if not stop:
        return False
    # What is cut off from its beginning reads otherwise for a character or two.
    needed = max(map(len, stop)) + 8
    number = needed + 1
    while number < len(token_ids) and len(decode(token_ids[-number:-1])) < needed:
        number *= 2
    end = decode(token_ids[-number:])
    return any(text in end for text in stop)
