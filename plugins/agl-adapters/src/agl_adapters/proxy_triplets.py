"""Token ids and reward of each turn, from the spans of the LLM proxy alone."""

from collections.abc import Sequence

from agl.algorithm.adapter import TraceToTripletBase, Triplet
from agl.algorithm.gateway import is_gateway_span
from agl.emitter import get_reward_value
from agl.types import Span
from agl_adapters.credit.rewards import calls_before, places
from agl_records.calls.reader import by_attempt, recorded_calls
from agl_records.calls.span_tree import ordered
from agl_records.final_rewards import graded_only
from agl_records.training_data import ModelCall

PROXY_SPANS = ("litellm_request", "raw_gen_ai_request")
"""Names of the spans of 0.3's proxy."""


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """Makes one triplet per call that the proxy recorded with token ids.

    It reads the spans of agl-gateway and those that 0.3's proxy stored. ``prompt`` and
    ``response`` have ``token_ids`` (``response`` also ``logprobs``, where known), ``metadata`` has
    ``response_id``. A reward goes to the last call before it, by number, that has none yet.
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
    of_proxies = [span for span in spans if is_gateway_span(span) or span.name in PROXY_SPANS]
    calls = [
        record.call
        for record in recorded_calls(of_proxies, spans)
        if record.call.prompt_token_ids and record.call.response_token_ids
    ]
    rewards: dict[str, float] = {}
    order = places(spans)
    for span in graded_only(spans):
        value = get_reward_value(span)
        if value is None:
            continue
        before = [calls[number].call_id for number in calls_before(span, calls, order)]
        open_calls = [call_id for call_id in before if call_id not in rewards]
        if open_calls:
            rewards[open_calls[-1]] = value
    return [_triplet(call, rewards.get(call.call_id)) for call in calls]


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
