"""A curve of rewards: in characters, and as SVG."""

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise

Points = Sequence[tuple[float, float]]
"""(step, value), by step."""

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a character of braille, by row and column."""
HELD_OUT = "●"


def text_curve(curve: Points, marks: Points, width: int, height: int = 9) -> list[str]:
    """Draw in characters: the curve as a line of dots, the marks as circles over it.

    The lines are ``width`` columns wide, axis and all; of the drawing there are ``height``. There
    are none where there are not two points to draw.
    """
    if len({*curve, *marks}) < 2:
        return []
    (left, right), (low, high) = limits(curve, marks)
    ticks = {0: high, height // 2: low + (high - low) * (1 - (height // 2) / (height - 1))}
    ticks[height - 1] = low
    labels = {row: _number(value, high - low) for row, value in ticks.items()}
    margin = max(map(len, labels.values()))
    columns = max(width - margin - 3, 10)

    def place(point: tuple[float, float]) -> tuple[int, int]:
        """Column and row, in dots."""
        x, y = (point[0] - left) / (right - left), (point[1] - low) / (high - low)
        return round(x * (2 * columns - 1)), round((1 - y) * (4 * height - 1))

    cells = [[_BRAILLE] * columns for _ in range(height)]
    for start, end in pairwise([*curve[:1], *curve]):
        (x0, y0), (x1, y1) = place(start), place(end)
        for n in range(max(abs(x1 - x0), abs(y1 - y0), 1) + 1):
            part = n / max(abs(x1 - x0), abs(y1 - y0), 1)
            x, y = round(x0 + (x1 - x0) * part), round(y0 + (y1 - y0) * part)
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    drawn = [[" " if cell == _BRAILLE else chr(cell) for cell in row] for row in cells]
    for point in marks:
        x, y = place(point)
        drawn[y // 4][x // 2] = HELD_OUT
    lines = [
        f" {labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}{''.join(cells)}".rstrip()
        for row, cells in enumerate(drawn)
    ]
    first, last = f"{left:g}", f"{right:g}"
    axis = f" {'':>{margin}} └{'─' * columns}"
    below = f" {'':>{margin}}  {first}{last:>{columns - len(first)}}"
    return [*lines, axis, below]


def limits(curve: Points, marks: Points) -> tuple[tuple[float, float], tuple[float, float]]:
    """The least and the greatest step, and the same of values, with room where all are equal."""
    xs, ys = zip(*curve, *marks, strict=True)
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    if low >= 0 and high <= 1 and high - low > 0.1:
        low, high = 0.0, 1.0  # as rewards mostly are
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    return (left, right if right > left else left + 1), (low, high)


def _number(value: float, span: float) -> str:
    digits = max(0, 1 - math.floor(math.log10(span)))
    return f"{value:.{min(digits, 6)}f}"


# --- as a picture

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 36
STYLE = files("agl_inspect.report").joinpath("curve.css").read_text("utf-8")
"""For a page that has such pictures in it; a picture by itself has it within."""


def svg_curve(
    curve: Points,
    marks: Points,
    *,
    title: str,
    key: tuple[str, str] = ("training, mean of a step", "held-out tasks"),
    alone: bool = False,
) -> str:
    """Draw a line and circles as SVG, in colours of light and dark pages; "" without two points.

    ``title`` is for who hears it and does not see it, and ``key`` says what line and circles are.
    ``alone`` makes a file by itself, and not a part of a page.
    """
    if len({*curve, *marks}) < 2:
        return ""
    (left, right), (low, high) = limits(curve, marks)
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = (point[0] - left) / (right - left), (point[1] - low) / (high - low)
        return round(_LEFT + x * wide, 1), round(_TOP + (1 - y) * tall, 1)

    parts = [f"<title>{escape(title)}</title>"]
    if alone:
        parts.append(f"<style>{STYLE}</style>")
        parts.append(f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>')
    for n in range(5):
        value = low + (high - low) * n / 4
        _, y = at((left, value))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        text = _number(value, high - low)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
    for value in _steps(left, right):
        x, _ = at((value, low))
        parts.append(
            f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>'
        )
    if len(curve) > 1:
        line = " ".join(f"{x},{y}" for x, y in map(at, curve))
        parts.append(f'<polyline class="line" points="{line}"/>')
    for point in marks if len(curve) > 1 else (*curve, *marks):
        x, y = at(point)
        parts.append(f'<circle class="mark" cx="{x}" cy="{y}" r="4"/>')
    shown = [(key[0], "line")] * (len(curve) > 1) + [(key[1], "mark")] * bool(marks)
    for n, (name, kind) in enumerate(shown):
        x = _LEFT + n * 220
        parts.append(f'<rect class="key-{kind}" x="{x}" y="{_HEIGHT - 12}" width="12" height="4"/>')
        parts.append(f'<text x="{x + 18}" y="{_HEIGHT - 6}">{escape(name)}</text>')
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    space = f' xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg class="agl-plot"{space if alone else ""} {box}>{"".join(parts)}</svg>'


def _steps(left: float, right: float) -> list[float]:
    """At most about eight round numbers from one to the other."""
    span = max(right - left, 1)
    size = 10 ** math.floor(math.log10(span / 4)) if span >= 4 else 1
    factor = next(f for f in (1, 2, 5, 10, 20) if span / (size * f) <= 8)
    size = max(size * factor, 1)
    first = math.ceil(left / size) * size
    return [first + n * size for n in range(int((right - first) // size) + 1)]
