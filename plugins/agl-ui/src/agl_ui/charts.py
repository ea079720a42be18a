"""Curves, bars and shares as numbers that a template draws; no colours here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agl_learning.reports.json_lines import is_number

LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 10.0, 26.0
"""Units of the drawing that axes and their numbers take."""
NARROW = 340.0
"""Width of a second drawing for small screens, on which the other's numbers could not be read."""
WIDE = 500.0
"""A drawing from this width has such a second one."""
Steps = tuple[int | None, int | None]
MOST_DOTS = 120
"""Points of one line that get a dot of their own."""
MOST_POINTS = 600
"""Points of one line; of more, each drawn one is the mean of its neighbours."""


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    kind: str
    """Class of the line, which gives it its colour."""
    path: str
    """Of SVG."""
    dots: list[tuple[float, float, str]]
    """Place, and what it says."""
    at: str
    """Step and value of each point of the path, for the one under the pointer."""


@dataclass(frozen=True)
class Chart:
    """Lines over common axes."""

    title: str
    width: float
    height: float
    lines: list[Line]
    x_ticks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    y_ticks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    says: str = ""
    """The chart in a sentence, for who does not see it."""
    remark: str = ""
    """That points are means of several steps, where they are."""
    narrow: "Chart | None" = None
    """The same for a small screen."""

    @property
    def drawings(self) -> list[tuple[str, "Chart"]]:
        """All of them, each with the class that says on which screens it is seen."""
        return [("", self)] if self.narrow is None else [("broad", self), ("narrow", self.narrow)]

    @property
    def bottom(self) -> float:
        """Where the axis lies."""
        return self.height - BOTTOM

    @property
    def left(self) -> float:
        """Where the other axis lies."""
        return LEFT

    @property
    def right(self) -> float:
        """Where both end."""
        return self.width - RIGHT


def chart(
    title: str,
    series: Sequence[tuple[str, str, Mapping[int, float | None]]],
    *,
    width: float = 900.0,
    height: float = 260.0,
    steps: Steps = (None, None),
) -> Chart | None:
    """Lay out lines; None where there is no point.

    Args:
        title: What is drawn.
        series: Name, kind, and step -> value. A step of None is a gap; one that is not
            there is none: the line goes on to the next.
        width: Of the drawing.
        height: The same.
        steps: The first and the last that are drawn.
    """
    low, high = steps[0] or 0, math.inf if steps[1] is None else steps[1]
    known = [
        (name, kind, {x: finite(points[x]) for x in sorted(points) if is_number(x)})
        for name, kind, points in series
    ]
    if steps != (None, None):
        known = [
            (name, kind, {x: y for x, y in points.items() if low <= x <= high})
            for name, kind, points in known
        ]
    known = [one for one in known if any(y is not None for y in one[2].values())]
    if not known:
        return None
    xs = [x for _, _, points in known for x, y in points.items() if y is not None]
    ys = [y for _, _, points in known for y in points.values() if y is not None]
    most = 8 if width >= WIDE else 5
    x_ticks, y_ticks = _ticks(min(xs), max(xs), most, whole=True), _ticks(min(ys), max(ys), 5)
    x_low, x_high = float(min(xs)), float(max(xs))
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place_x(x: float) -> float:
        return round(LEFT + _share(x, x_low, x_high) * (width - LEFT - RIGHT), 1)

    def place_y(y: float) -> float:
        return round(height - BOTTOM - _share(y, y_low, y_high) * (height - TOP - BOTTOM), 1)

    lines: list[Line] = []
    for name, kind, points in known:
        thin, size = _thin(points), _stretch(points)
        of = "step" if size == 1 else f"mean of up to {size} values to step"
        placed = [
            (place_x(x), place_y(y), f"{name}, {of} {x:g}: {_tidy(y)}")
            for x, y in thin
            if y is not None
        ]
        drawn, dots = _drawn(thin), placed
        if len(placed) > MOST_DOTS:  # only those between two gaps, which have no line
            marks = pairwise([*(mark for mark, _ in drawn), "M"])
            dots = [one for one, near in zip(placed, marks, strict=True) if near == ("M", "M")]
        path = " ".join(f"{mark}{place_x(x)} {place_y(y)}" for mark, (x, y) in drawn)
        at = " ".join(f"{x:g}:{_tidy(y)}" for _, (x, y) in drawn)
        lines.append(Line(name, kind, path, dots, at))
    return Chart(
        title,
        width,
        height,
        lines,
        [(place_x(x), _tidy(x)) for x in x_ticks if x_low <= x <= x_high],
        [(place_y(y), _tidy(y)) for y in y_ticks],
        f"{title}. {'. '.join(_said(name, points) for name, _, points in known)}.",
        "; ".join(
            f"{name}: each point is the mean of up to {_stretch(points)} values"
            for name, _, points in known
            if _stretch(points) > 1
        ),
        chart(title, series, width=NARROW, height=min(height, 220.0), steps=steps)
        if width >= WIDE
        else None,
    )


def finite(value: Any) -> float | None:
    """What a file gives, where it is a number that can be drawn; else None."""
    return float(value) if is_number(value) else None


def _share(value: float, low: float, high: float) -> float:
    """Where a value lies in a range, from 0 to 1."""
    if high == low:
        return 0.5
    if math.isinf(high - low):
        value, low, high = value / 4, low / 4, high / 4
    return (value - low) / (high - low)


def _said(name: str, points: Mapping[int, float | None]) -> str:
    known = [(x, y) for x, y in points.items() if y is not None]
    first, last = known[0], known[-1]
    values = [y for _, y in known]
    return (
        f"{name}: from {_tidy(first[1])} at step {first[0]} to {_tidy(last[1])} at step {last[0]}, "
        f"lowest {_tidy(min(values))}, highest {_tidy(max(values))}"
    )


def _stretch(points: Mapping[int, float | None]) -> int:
    """So many steps are one point."""
    return max(1, math.ceil(len(points) / MOST_POINTS))


def _thin(points: Mapping[int, float | None]) -> list[tuple[float, float | None]]:
    """Not more than are drawn, each the mean of a stretch; None where that has no value."""
    pairs = [(float(x), y) for x, y in points.items()]
    size = _stretch(points)
    if size == 1:
        return pairs
    found: list[tuple[float, float | None]] = []
    for part in (pairs[at : at + size] for at in range(0, len(pairs), size)):
        known = [y for _, y in part if y is not None]
        found.append((part[-1][0], sum(y / len(known) for y in known) if known else None))
    return found


def _drawn(thin: Sequence[tuple[float, float | None]]) -> list[tuple[str, tuple[float, float]]]:
    """The points that have a value, each with whether a line leads to it: L, or M after a gap."""
    found: list[tuple[str, tuple[float, float]]] = []
    mark = "M"
    for x, y in thin:
        if y is None:
            mark = "M"
        else:
            found.append((mark, (x, y)))
            mark = "L"
    return found


def _ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers that enclose a range, or lie in it where they are whole."""
    if high == low:
        return [float(low)]
    if max(-low, high) > 1e300 or (high - low) / most < 1e-300:  # round ones are none of these
        return [float(low), float(high)]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= most:
            step *= factor
            break
    if whole:
        step = max(1.0, step)
        first = math.ceil(low / step)
        return [round(n * step, 9) for n in range(first, math.floor(high / step) + 1)]
    first, last = math.floor(low / step), math.ceil(high / step)
    return [n * step for n in range(first, last + 1)]


def _tidy(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}".replace("-", "−")


@dataclass(frozen=True)
class Part:
    """A piece of a bar."""

    name: str
    kind: str
    number: int
    start: float
    """Percent of the bar."""
    width: float
    """The same."""


def shares(counts: Mapping[str, int], kinds: Mapping[str, str], whole: int = 0) -> list[Part]:
    """Pieces of a bar, one per count above 0, over the sum of all or over ``whole``."""
    total = whole or sum(counts.values()) or 1
    parts: list[Part] = []
    at = 0.0
    for name, count in counts.items():
        if count:
            width = 100.0 * count / total
            parts.append(Part(name, kinds.get(name, "off"), count, round(at, 3), round(width, 3)))
            at += width
    return parts
