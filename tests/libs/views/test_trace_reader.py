"""What is read of a long trace."""

from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN
from agl_testing.store_steps import span_of
from agl_views.explanations import trace_reader
from agl_views.explanations.trace_reader import Part, read_trace


async def test_of_a_long_trace_calls_and_rewards_are_read(store, monkeypatch):
    monkeypatch.setattr(trace_reader, "MOST_SPANS", 10)
    rollout = await store.start_rollout("task")
    names = [*["tool"] * 8, *[MODEL_CALL_SPAN] * 5, AGL_ANNOTATION]
    rewards = {AGL_ANNOTATION: reward_attributes(1.0)}
    spans = [span_of(rollout, name, attributes=rewards.get(name, {})) for name in names]
    await store.add_many_spans(spans)
    found = await read_trace(store, rollout.rollout_id, part=Part(most=3))
    assert (found.total, found.num_calls, found.is_whole) == (14, 5, False)
    # The first calls, and the last annotations; both by number.
    assert [span.sequence_id for span in found.spans] == [9, 10, 11, 14]
    found = await read_trace(store, rollout.rollout_id, part=Part(3, 3))
    assert [span.sequence_id for span in found.spans] == [12, 13, 14]
    assert (found.first_call, found.num_calls) == (3, 5)
    whole = await read_trace(store, rollout.rollout_id)
    assert (len(whole.spans), whole.is_whole) == (14, True)
