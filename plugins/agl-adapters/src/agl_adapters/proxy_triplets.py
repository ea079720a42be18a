"""Token ids and reward of each turn, from the spans of the LLM proxy alone."""

from collections.abc import Sequence

from agl.adapter import TraceToTripletBase
from agl.emitter import get_reward_value
from agl.types import ModelCall, Span, Triplet
from agl_adapters.calls import by_attempt, recorded_calls
from agl_adapters.sources import gateway, litellm
from agl_adapters.tree import ordered


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """Makes one triplet per call that the proxy recorded with token ids.

    It reads the spans of agl-gateway and those that 0.3's proxy stored. ``prompt`` and
    ``response`` have ``token_ids`` (``response`` also ``logprobs``, where known), ``metadata`` has
    ``response_id``. A reward goes to the last call before it that has none yet.

    Before means: ended before the reward began. Where no call did, as when two machines' clocks
    differ, the numbers within the attempt decide.
    """

    def adapt(self, source: Sequence[Span], /) -> list[Triplet]:
        """Triplets in order of attempt and number; none for no spans.

        Raises:
            AdapterError: A call cannot be read.
        """
        triplets: list[Triplet] = []
        for spans in by_attempt(source).values():
            triplets.extend(_of_attempt(ordered(spans)))
        return triplets


def _of_attempt(spans: Sequence[Span]) -> list[Triplet]:
    calls = [
        record.call
        for record in recorded_calls([span for span in spans if _is_proxy_span(span)])
        if record.call.prompt_token_ids and record.call.response_token_ids
    ]
    rewards: dict[str, float] = {}
    for span in spans:
        value = get_reward_value(span)
        if value is None:
            continue
        open_calls = [call for call in calls if call.call_id not in rewards]
        before = [call for call in open_calls if _ended_before(call, span)]
        before = before or [c for c in open_calls if c.sequence_id < span.sequence_id]
        if before:
            rewards[before[-1].call_id] = value
    return [_triplet(call, rewards.get(call.call_id)) for call in calls]


def _is_proxy_span(span: Span) -> bool:
    return gateway.is_gateway_span(span) or span.name in (litellm.REQUEST, litellm.RAW)


def _ended_before(call: ModelCall, span: Span) -> bool:
    if call.end_time is None or span.start_time is None:
        return False
    return call.end_time <= span.start_time


def _triplet(call: ModelCall, reward: float | None) -> Triplet:
    response: dict[str, object] = {"token_ids": call.response_token_ids}
    if call.response_logprobs:
        response["logprobs"] = [{"logprob": logprob} for logprob in call.response_logprobs]
    return Triplet(
        prompt={"token_ids": call.prompt_token_ids},
        response=response,
        reward=reward,
        metadata={"response_id": call.response_id},
    )
