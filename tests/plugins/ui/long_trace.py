"""A rollout with a long trace: tools and framework spans, some model calls, one reward."""

from pathlib import Path

import agl
from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Call
from agl.types import TraceStatus

BATCH = 2_000


async def fill_with_long_trace(path: Path, num_spans: int, every: int = 100) -> str:
    """Write the rollout; its id. One span in ``every`` is a model call, the others hang below.

    Args:
        path: The file of the store.
        num_spans: Of its attempt.
        every: After so many spans comes the next model call.
    """
    store = agl.SqliteLightningStore(path, durability="process")
    rollout = await store.start_rollout({"task": "long"}, mode="train", worker_id="w")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    begin, spans, parent = rollout.attempt.start_time, [], None
    for number in range(num_spans):
        at = begin + number * 0.01
        given = {"start_time": at, "end_time": at + 0.009, **ids}
        if number == num_spans - 1:
            span = agl.Span.from_attributes(
                name=AGL_ANNOTATION, attributes=reward_attributes(1.0), **given
            )
        elif number % every == 0:
            parent = f"{number + 1:016x}"
            span = agl.Span.from_attributes(
                name=MODEL_CALL_SPAN, attributes=_call(number), span_id=parent, **given
            )
        else:
            status = TraceStatus(status_code="ERROR" if number % 997 == 0 else "OK")
            attributes = {"tool.name": "search", "tool.input": f"query {number}" * 8}
            span = agl.Span.from_attributes(
                name=f"tool.search {number}",
                attributes=attributes,
                parent_id=parent,
                status=status,
                **given,
            )
        spans.append(span)
        if len(spans) == BATCH or number == num_spans - 1:
            await store.add_many_spans(spans)
            spans = []
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await store.close()
    return rollout.rollout_id


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
