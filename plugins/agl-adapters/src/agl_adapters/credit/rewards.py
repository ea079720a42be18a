"""The rewards of an attempt, and the call that each of them is about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agl.algorithm.gateway import is_gateway_span
from agl.emitter import get_rewards_from_span
from agl.semconv import LightningSpanAttributes as Key, ModelCallAttributes
from agl.types import Span
from agl.utils.otel import extract_links_from_attributes, query_linked_spans
from agl.utils.rewards import reward_problem
from agl_adapters.air import AIR_RULE
from agl_records.final_rewards import graded_only
from agl_records.training_data import ModelCall
from agl_records.types import Credit


@dataclass(frozen=True)
class Reward:
    """A span that holds a reward."""

    span: Span
    dimensions: dict[str, float]
    """Name -> value; the first is the primary one; empty where there is a ``problem``."""
    problem: str | None = None
    """Why it cannot be read, or told what it is about."""

    @property
    def value(self) -> float:
        """The primary one."""
        return next(iter(self.dimensions.values()))

    @property
    def is_automatic(self) -> bool:
        """Whether a rule of AIR made it, here and now; what a store has was written by others."""
        return AIR_RULE in self.span.attributes and self.span.writer is None


def rewards_of(spans: Sequence[Span]) -> list[Reward]:
    """The rewards that count among the spans of an attempt, as ``all_rewards_of`` gives them.

    Where the attempt was graded, those that its agent emitted do not.
    """
    counting = {span.span_id for span in graded_only(spans)}
    rewards = all_rewards_of(spans)
    return [one for one in rewards if one.is_automatic or one.span.span_id in counting]


def all_rewards_of(spans: Sequence[Span]) -> list[Reward]:
    """The rewards among spans, in the same order, those that cannot be read with the reason."""
    rewards: list[Reward] = []
    for span in spans:
        if is_gateway_span(span):
            continue  # most spans are, with many attributes to look through and no reward
        dimensions = {reward.name: reward.value for reward in get_rewards_from_span(span)}
        problem = None if dimensions else reward_problem(span)
        if problem is not None:
            rewards.append(Reward(span, {}, problem))
        elif dimensions:
            rewards.append(Reward(span, dimensions))
    return rewards


def unreadable(rewards: Iterable[Reward]) -> Credit | None:
    """The credit of a call to which these rewards would go, where one cannot be read; else None."""
    for reward in rewards:
        if reward.problem is not None:
            because = f"its reward (span {reward.span.span_id}) cannot be read: {reward.problem}"
            return Credit(reward=None, reason="refused_reward", because=because)
    return None


def unordered(spans: Sequence[Span]) -> Credit | None:
    """The credit of each call where it is not known which one a reward followed; else None."""
    for reward in rewards_of(spans):
        span = reward.span
        is_unordered = reward.problem is None and span.attributes.get(Key.UNORDERED)
        if is_unordered and not extract_links_from_attributes(span.attributes):
            because = f"it is not known which call the reward of span {span.span_id} followed"
            return Credit(reward=None, reason="unordered_reward", because=because)
    return None


def call_of(
    reward: Reward, calls: Sequence[ModelCall], spans: Sequence[Span], order: Mapping[str, int]
) -> int | None:
    """Position of the call that a reward is about; None when it is about none.

    That is the call which its links point to, for a link to a tool the last one before that, and
    without links the last one before the reward, by number. A call has its number when its answer
    is stored, which is before what the agent ends after it. Clocks are not asked: gateway and agent
    may be on machines whose clocks differ.

    Args:
        reward: One that can be read.
        calls: Of the attempt, in order of their numbers.
        spans: Of the attempt, in the same order.
        order: Their ``places``.
    """
    span = reward.span
    links = extract_links_from_attributes(span.attributes)
    if links:
        linked = query_linked_spans(spans, links)
        ids = {found.span_id for found in linked}
        response_ids = {found.attributes.get(ModelCallAttributes.RESPONSE_ID) for found in linked}
        matching = [
            number
            for number, call in enumerate(calls)
            if call.call_id in ids or (call.response_id and call.response_id in response_ids)
        ]
        if matching or not linked:
            return matching[-1] if matching else None
        span = linked[-1]
    before = calls_before(span, calls, order)
    return before[-1] if before else None


def places(spans: Sequence[Span]) -> dict[str, int]:
    """Span id -> its place among the spans of an attempt, which are in order of their numbers."""
    return {span.span_id: place for place, span in enumerate(spans)}


def calls_before(span: Span, calls: Sequence[ModelCall], order: Mapping[str, int]) -> list[int]:
    """The positions of the calls before a span, by their numbers; ``order`` is that of places."""
    place = order[span.span_id]
    return [n for n, call in enumerate(calls) if order.get(call.call_id, place) < place]


def rewards_by_call(
    calls: Sequence[ModelCall], spans: Sequence[Span]
) -> tuple[list[list[Reward]], list[Reward]]:
    """Per call the rewards that are about it, and those that are about none."""
    by_call: list[list[Reward]] = [[] for _ in calls]
    of_none: list[Reward] = []
    order = places(spans)
    for reward in rewards_of(spans):
        # Of one whose links are broken, too, it is safest to say that it is of the call before.
        if reward.problem is None:
            number = call_of(reward, calls, spans, order)
        else:
            number = next(reversed(calls_before(reward.span, calls, order)), None)
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
        given = [reward for reward in given if reward.problem is None]
        total = sum(reward.value for reward in given) + gamma * total
        sources = [*(reward.span.span_id for reward in given), *sources]
        result.append((total, sources))
    return result[::-1]
