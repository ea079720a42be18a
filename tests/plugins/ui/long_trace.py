"""A rollout with a long trace: tools and framework spans, some model calls, one reward."""

from pathlib import Path

from agl.semconv import ModelCallAttributes as Call
from agl.types import Span, TraceStatus

from ..inspect.traces import call_of, ids_of, reward_span  # noqa: TID252
from .stores import filled


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
        return reward_span(1.0).model_copy(update=given)
    if number % every == 0:
        tokens = list(range(20)), list(range(30)), [-0.1] * 30
        about = {"number": number + 1, Call.REQUEST_MODEL: "policy", Call.FINISH_REASONS: ["stop"]}
        call = call_of(f"question {number}", f"answer {number}", *tokens, **about)
        return call.model_copy(update=given)
    parent = f"{number // every * every + 1:016x}"
    given["status"] = TraceStatus(status_code="ERROR" if number % 997 == 0 else "OK")
    attributes = {"tool.name": "search", "tool.input": f"query {number}" * 8}
    made = {"attributes": attributes, "parent_id": parent}
    return Span.from_attributes(name=f"tool.search {number}", **made, **given)
