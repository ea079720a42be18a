"""What was given as a reward: each with its author and evidence, and what of it was refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.emitter import get_rewards_from_span, is_reward_span
from agl.semconv import LightningSpanAttributes
from agl.types import Span
from agl.utils.rewards import reward_problem
from agl.utils.text import printable


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
    """A reward span that nobody can read, and that counts for nothing."""

    span_id: str
    sequence_id: int
    attempt_id: str
    problem: str
    writer: str | None = None


def reward_lines(spans: Sequence[Span]) -> tuple[RewardLine, ...]:
    """The rewards that can be read, in their order."""
    found = sorted((s for s in spans if is_reward_span(s)), key=lambda s: s.sequence_id)
    return tuple(
        RewardLine(
            *(span.span_id, span.sequence_id, one.value, one.name, span.attempt_id),
            *(span.writer, _evidence(span)),
        )
        for span in found
        for one in get_rewards_from_span(span)
    )


def refused_rewards(spans: Sequence[Span]) -> tuple[RefusedReward, ...]:
    """Those that cannot, in their order."""
    return tuple(
        RefusedReward(span.span_id, span.sequence_id, span.attempt_id, problem, span.writer)
        for span in sorted(spans, key=lambda span: span.sequence_id)
        if (problem := reward_problem(span)) is not None
    )


def refused_text(refused: Sequence[RefusedReward]) -> str:
    """How many were refused, and why the last one was; "" for none."""
    return f"{len(refused)} refused: {printable(refused[-1].problem)}" if refused else ""


def _evidence(span: Span) -> dict[str, Any]:
    prefix = f"{LightningSpanAttributes.REWARD.value}."
    return {name: value for name, value in span.attributes.items() if not name.startswith(prefix)}
