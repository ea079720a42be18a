"""Numbers and named lines as people read them."""

import textwrap
from collections.abc import Iterable
from statistics import fmean
from typing import Any


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that there are; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def number(value: float | None, none: str = "none") -> str:
    """With four digits."""
    return none if value is None else f"{value:.4g}"


def rounded(row: Iterable[Any]) -> list[Any]:
    """Cells of a table: fractions with four digits."""
    return [number(cell) if isinstance(cell, float) else cell for cell in row]


def entry(name: str, text: str, width: int, margin: int) -> list[str]:
    """A name, and beside it a text, broken at a width where it has blanks."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{name:<{margin - 1}} ",
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
