"""What is read of a rollout's spans: all of them, or of a long trace what says and earned; rewards.

Instrumented agents write tens of thousands of spans. Who shows a rollout needs its model calls and
its rewards, each with its author and evidence; the rest is looked at a window at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.emitter import get_rewards_from_span
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, LightningSpanAttributes
from agl.store.base import LightningStore
from agl.types import Span
from agl.utils.rewards import reward_problem
from agl.utils.text import printable
from agl_records.types import EXCLUSION_REASONS

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
    """Read the spans of a rollout: all, or of a long trace a part.

    Of that it has only these model calls, as a gateway recorded them, and annotations, rewards
    among them.
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


@dataclass(frozen=True)
class RewardLine:
    """One reward span."""

    span_id: str
    sequence_id: int
    value: float
    name: str
    attempt_id: str
    writer: str | None = None
    """Who wrote the span: ``agent``, ``runner``, ``gateway`` or ``algorithm``; None where nobody
    says."""
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else its span holds: a judge's reasons, say."""


@dataclass(frozen=True)
class RefusedReward:
    """A reward span that nobody can read, or that came too late, and that counts for nothing."""

    span_id: str
    sequence_id: int
    attempt_id: str
    problem: str
    writer: str | None = None


def reward_lines(spans: Sequence[Span]) -> tuple[RewardLine, ...]:
    """The rewards that can be read, in the order of their spans."""
    return tuple(
        RewardLine(
            *(span.span_id, span.sequence_id, one.value, one.name, span.attempt_id),
            *(span.writer, _evidence(span)),
        )
        for span in spans
        for one in get_rewards_from_span(span)
    )


def refused_rewards(spans: Sequence[Span]) -> tuple[RefusedReward, ...]:
    """Those that count for nothing, in the order of their spans."""
    return tuple(
        RefusedReward(span.span_id, span.sequence_id, span.attempt_id, problem, span.writer)
        for span in spans
        if (problem := _problem(span)) is not None
    )


def _problem(span: Span) -> str | None:
    if not span.late:
        return reward_problem(span)
    unmarked = span.changed(late=False)
    given = [f"{one.value:.4g}" for one in reward_lines([unmarked])] or [reward_problem(unmarked)]
    return f"{given[0]}: {EXCLUSION_REASONS['late']}" if given[0] else None


def refused_text(refused: Sequence[RefusedReward]) -> str:
    """How many were refused, and why the last one was; "" for none."""
    return f"{len(refused)} refused: {printable(refused[-1].problem)}" if refused else ""


def _evidence(span: Span) -> dict[str, Any]:
    prefix = f"{LightningSpanAttributes.REWARD.value}."
    return {name: value for name, value in span.attributes.items() if not name.startswith(prefix)}
