"""The rewards of an attempt, and the call that each of them is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from agl.emitter import get_rewards_from_span
from agl.errors import AdapterError
from agl.semconv import ModelCallAttributes
from agl.types import ModelCall, Span
from agl.utils.otel import extract_links_from_attributes, query_linked_spans
from agl_adapters.air import AIR_RULE
from agl_adapters.sources.gateway import is_gateway_span

CLOSING_SECONDS = 0.05
"""A gateway may close a call's span so much later than the agent has read the answer."""


@dataclass(frozen=True)
class Reward:
    """A span that holds a reward."""

    span: Span
    dimensions: dict[str, float]
    """Name -> value; the first is the primary one."""

    @property
    def value(self) -> float:
        """The primary one."""
        return next(iter(self.dimensions.values()))

    @property
    def is_automatic(self) -> bool:
        """Whether a rule of AIR made it, and not the agent."""
        return AIR_RULE in self.span.attributes


def rewards_of(spans: Sequence[Span]) -> list[Reward]:
    """The rewards among spans, in the same order."""
    rewards: list[Reward] = []
    for span in spans:
        if is_gateway_span(span):
            continue  # most spans are, with many attributes to look through and no reward
        dimensions = {reward.name: reward.value for reward in get_rewards_from_span(span)}
        if dimensions:
            rewards.append(Reward(span, dimensions))
    return rewards


def call_of(reward: Reward, calls: Sequence[ModelCall], spans: Sequence[Span]) -> int | None:
    """Position of the call that a reward is about; None when it is about none.

    That is the call which its links point to, and without links the last one that began before it
    and had ended by then. Only where times are missing, numbers decide: spans of an agent are
    numbered when they are sent, at the end.

    Raises:
        AdapterError: A link has no key or no value.
    """
    span = reward.span
    try:
        links = extract_links_from_attributes(span.attributes)
    except ValueError as error:
        raise AdapterError(f"the reward span {span.span_id!r}: {error}") from error
    if links:
        linked = query_linked_spans(spans, links)
        ids = {found.span_id for found in linked}
        response_ids = {found.attributes.get(ModelCallAttributes.RESPONSE_ID) for found in linked}
        matching = [
            number
            for number, call in enumerate(calls)
            if call.call_id in ids or (call.response_id and call.response_id in response_ids)
        ]
        return matching[-1] if matching else None
    if span.start_time is None or any(call.start_time is None for call in calls):
        numbered = [n for n, call in enumerate(calls) if 0 < call.sequence_id < span.sequence_id]
        return numbered[-1] if numbered else None
    before = [
        (call.start_time or 0.0, number)
        for number, call in enumerate(calls)
        if (call.start_time or 0.0) < span.start_time
        and (call.end_time or 0.0) <= span.start_time + CLOSING_SECONDS
    ]
    return max(before)[1] if before else None


def rewards_by_call(
    calls: Sequence[ModelCall], spans: Sequence[Span]
) -> tuple[list[list[Reward]], list[Reward]]:
    """Per call the rewards that are about it, and those that are about none."""
    by_call: list[list[Reward]] = [[] for _ in calls]
    of_none: list[Reward] = []
    for reward in rewards_of(spans):
        number = call_of(reward, calls, spans)
        (of_none if number is None else by_call[number]).append(reward)
    return by_call, of_none


def returns_to_go(
    rewards: Sequence[Sequence[Reward]], gamma: float
) -> list[tuple[float, list[str]]]:
    """Per call the discounted sum of its own and all later rewards, and the spans in it.

    ``G_k = r_k + gamma * G_(k+1)``; a call before which nothing is left has no spans.
    """
    total, sources = 0.0, list[str]()
    result: list[tuple[float, list[str]]] = []
    for given in reversed(rewards):
        total = sum(reward.value for reward in given) + gamma * total
        sources = [*(reward.span.span_id for reward in given), *sources]
        result.append((total, sources))
    return result[::-1]
