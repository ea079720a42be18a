"""The spans of a rollout that say what it said and earned: all of them, or of a long trace those.

Instrumented agents write tens of thousands of spans. Who shows a rollout needs its model calls and
its rewards; the rest is looked at a window at a time.
"""

from dataclasses import dataclass
from typing import Any

from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN
from agl.store.base import LightningStore
from agl.types import Span

MOST_SPANS = 2_000
"""A trace of more is a long one."""
MOST_CALLS = 1_000
"""So many model calls of a long one are read, the first ones; and so many annotations, the last."""


@dataclass(frozen=True)
class Trace:
    """What was read of a rollout's spans."""

    spans: list[Span]
    """By number."""
    total: int
    """How many there are."""
    num_calls: int | None = None
    """Of a long one: how many calls the gateway recorded; None where all spans were read."""

    @property
    def is_whole(self) -> bool:
        """Whether all spans were read."""
        return self.num_calls is None


async def read_trace(
    store: LightningStore, rollout_id: str, *, whole: bool = True, most: int = MOST_CALLS
) -> Trace:
    """Read the spans of a rollout.

    Args:
        store: Where they are.
        rollout_id: Whose.
        whole: Whether to read all, however many; else a long trace's model calls, as a gateway
            recorded them, and annotations, rewards among them.
        most: Of a long trace, so many of each.
    """
    total = 0 if whole else (await store.query_spans(rollout_id, limit=1)).total
    if total <= MOST_SPANS:
        spans = await store.query_spans(rollout_id)
        return Trace(list(spans), len(spans))
    calls = await store.query_spans(rollout_id, name=MODEL_CALL_SPAN, limit=most)
    last: dict[str, Any] = {"limit": most, "sort_order": "desc"}
    notes = await store.query_spans(rollout_id, name=AGL_ANNOTATION, **last)
    spans = sorted([*calls, *notes], key=lambda span: span.sequence_id)
    return Trace(spans, total, calls.total)
