"""Numbers as people read them."""

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
