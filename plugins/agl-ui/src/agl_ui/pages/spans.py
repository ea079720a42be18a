"""The spans of an attempt on its clock: a window of them at a time, however many there are."""

from collections.abc import Sequence
from dataclasses import dataclass

from agl.types import Attempt, Span
from agl_ui.data_sources import DataSource

WINDOW = 100
"""Spans that one answer has."""
WHOLE = 400
"""So many are read at once, and shown as the tree that they are; more come in the order in which
they began."""


@dataclass
class Bar:
    """A span on the clock of its attempt."""

    span: Span
    depth: int
    begin: float
    """Seconds after the first one."""
    seconds: float
    left: float
    """Percent of the whole."""
    width: float
    """The same."""

    @property
    def is_bad(self) -> bool:
        """Whether it failed."""
        return self.span.status.status_code == "ERROR"


@dataclass
class Window:
    """Some of the spans of an attempt."""

    total: int
    first: int
    """Number of the first one, from 0."""
    bars: list[Bar]
    is_tree: bool
    """Whether children stand below their parents; else all in the order in which they began."""

    @property
    def last(self) -> int:
        """Number of the one after the last."""
        return self.first + len(self.bars)

    @property
    def before(self) -> int | None:
        """Where the window before begins."""
        return max(0, self.first - WINDOW) if self.first else None

    @property
    def after(self) -> int | None:
        """Where the next window begins."""
        return self.last if self.last < self.total else None


async def window(source: DataSource, attempt: Attempt, first: int) -> Window:
    """The spans from one on.

    Args:
        source: Where they are.
        attempt: Whose.
        first: Number of the first one, from 0; of a number beyond the last, the last window.
    """
    ids = (attempt.rollout_id, attempt.attempt_id)
    store = source.store
    page = await store.query_spans(*ids, sort_by="start_time", limit=WINDOW, offset=first)
    if not page and page.total:
        first = (page.total - 1) // WINDOW * WINDOW
        page = await store.query_spans(*ids, sort_by="start_time", limit=WINDOW, offset=first)
    if page.total <= WHOLE:
        whole = list(page) if len(page) == page.total else list(await store.query_spans(*ids))
        bars = tree(whole)
        return Window(len(bars), first, bars[first : first + WINDOW], True)
    (oldest,) = await store.query_spans(*ids, sort_by="start_time", limit=1)
    # What has no end comes last, which is first here.
    last = await store.query_spans(*ids, sort_by="end_time", sort_order="desc", limit=20)
    ends = [one for span in (*last, *page) for one in (span.start_time, span.end_time) if one]
    begin, end = oldest.start_time or 0.0, max(ends, default=0.0)
    parents = {span.span_id: span.parent_id for span in page}
    bars = [_bar(span, _depth(span, parents), begin, end) for span in page]
    return Window(page.total, first, bars, False)


def _depth(span: Span, parents: dict[str, str | None]) -> int:
    """How many spans are above one, of those in its window and one more."""
    depth, above = 0, span.parent_id
    while above is not None and depth < len(parents):  # some name each other as parents
        depth, above = depth + 1, parents.get(above)
    return depth


def tree(spans: Sequence[Span]) -> list[Bar]:
    """Spans as a tree, each with its place on the clock of all."""
    begin = min((span.start_time for span in spans if span.start_time is not None), default=0.0)
    end = max((span.end_time or span.start_time or begin for span in spans), default=begin)
    ids = {span.span_id for span in spans}
    below: dict[str, list[Span]] = {}
    # Of what says no time, nobody knows when it was; it comes last.
    ordered = sorted(
        spans, key=lambda span: (span.start_time is None, span.start_time or 0.0, span.sequence_id)
    )
    for span in ordered:
        parent = span.parent_id if span.parent_id in ids and span.parent_id != span.span_id else ""
        below.setdefault(parent or "", []).append(span)
    bars: list[Bar] = []
    seen: set[str] = set()
    # Spans that name each other as parents hang on nothing; they come at the end.
    roots = [*below.get("", []), *ordered]
    waiting = [(span, 0) for span in reversed(roots)]
    while waiting:
        span, depth = waiting.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        bars.append(_bar(span, depth, begin, end))
        waiting += [(one, depth + 1) for one in reversed(below.get(span.span_id, []))]
    return bars


def _bar(span: Span, depth: int, begin: float, end: float) -> Bar:
    whole = max(end - begin, 1e-9)
    start = (span.start_time if span.start_time is not None else end) - begin
    length = max(0.0, (span.end_time or span.start_time or 0.0) - (span.start_time or 0.0))
    left = min(max(100.0 * start / whole, 0.0), 99.5)
    width = min(max(100.0 * length / whole, 0.5), 100.0 - left)
    return Bar(span, depth, start, length, round(left, 3), round(width, 3))
