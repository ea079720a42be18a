"""A rollout with a long trace: tools and framework spans, some model calls, one reward."""

from pathlib import Path

from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Call
from agl.types import Span, TraceStatus

from .stores import filled, ids_of


def fill_with_long_trace(path: Path, num_spans: int, every: int = 100) -> str:
    """Write the rollout; its id. One span in ``every`` is a model call, the others hang below.

    Args:
        path: The file of the store.
        num_spans: Of its attempt.
        every: After so many spans comes the next model call.
    """

    async def fill(store):
        rollout = await store.start_rollout({"task": "long"}, mode="train", worker_id="w")
        ids, begin = ids_of(rollout), rollout.attempt.start_time
        spans = [_span(number, num_spans, every, begin, ids) for number in range(num_spans)]
        for at in range(0, num_spans, 2_000):
            await store.add_many_spans(spans[at : at + 2_000])
        await store.update_attempt(**ids, status="succeeded")
        return rollout.rollout_id

    return filled(path, fill)


def _span(number: int, num_spans: int, every: int, begin: float, ids: dict) -> Span:
    at = begin + number * 0.01
    given = {"start_time": at, "end_time": at + 0.009, **ids}
    if number == num_spans - 1:
        return Span.from_attributes(name=AGL_ANNOTATION, attributes=reward_attributes(1.0), **given)
    parent = f"{number // every * every + 1:016x}"
    if number % every == 0:
        made = {"attributes": _call(number), "span_id": parent}
        return Span.from_attributes(name=MODEL_CALL_SPAN, **made, **given)
    given["status"] = TraceStatus(status_code="ERROR" if number % 997 == 0 else "OK")
    attributes = {"tool.name": "search", "tool.input": f"query {number}" * 8}
    made = {"attributes": attributes, "parent_id": parent}
    return Span.from_attributes(name=f"tool.search {number}", **made, **given)


def _call(number: int) -> dict:
    return {
        Call.OPERATION: "chat",
        Call.REQUEST_MODEL: "policy",
        Call.INPUT_MESSAGES: f'[{{"role": "user", "content": "question {number}"}}]',
        Call.OUTPUT_MESSAGES: f'[{{"role": "assistant", "content": "answer {number}"}}]',
        Call.PROMPT_TOKEN_IDS: list(range(20)),
        Call.RESPONSE_TOKEN_IDS: list(range(30)),
        Call.RESPONSE_LOGPROBS: [-0.1] * 30,
        Call.FINISH_REASONS: ["stop"],
    }
