"""The spans of a rollout that say what it said and earned: all of them, or of a long trace those.

Instrumented agents write tens of thousands of spans. Who shows a rollout needs its model calls and
its rewards; the rest is looked at a window at a time.
"""

from dataclasses import dataclass

from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN
from agl.store.base import LightningStore
from agl.types import Span

MOST_SPANS = 2_000
"""A trace of more is a long one."""
MOST_CALLS = 1_000
"""So many model calls of a long one are read, unless fewer are asked for; and so many annotations,
the last."""


@dataclass(frozen=True)
class Part:
    """Which model calls of a long trace are read; those of the gateway, in their order."""

    first: int = 0
    """Number of the first one, from 0."""
    most: int = MOST_CALLS
    attempt_id: str | None = None
    """Of which attempt; None for all."""


@dataclass(frozen=True)
class Trace:
    """What was read of a rollout's spans."""

    spans: list[Span]
    """By number."""
    total: int
    """How many there are."""
    num_calls: int | None = None
    """Of a long one: how many calls the gateway recorded; None where all spans were read."""
    first_call: int = 0
    """Of a long one: the number of the first call that was read, from 0."""

    @property
    def is_whole(self) -> bool:
        """Whether all spans were read."""
        return self.num_calls is None


async def read_trace(store: LightningStore, rollout_id: str, *, part: Part | None = None) -> Trace:
    """Read the spans of a rollout.

    Args:
        store: Where they are.
        rollout_id: Whose.
        part: Of a long trace only these model calls, as a gateway recorded them, and annotations,
            rewards among them; None for all spans, however many.
    """
    total = 0 if part is None else (await store.query_spans(rollout_id, limit=1)).total
    if part is None or total <= MOST_SPANS:
        spans = await store.query_spans(rollout_id)
        return Trace(list(spans), len(spans))
    calls = await store.query_spans(
        rollout_id, part.attempt_id, name=MODEL_CALL_SPAN, limit=part.most, offset=part.first
    )
    notes = await store.query_spans(
        rollout_id, name=AGL_ANNOTATION, limit=MOST_CALLS, sort_order="desc"
    )
    spans = sorted([*calls, *notes], key=lambda span: span.sequence_id)
    return Trace(spans, total, calls.total, part.first)
