"""What a rollout that did not succeed was given on the way is sent as no reward of it."""

import pytest

import agl
from agl.emitter import reward_attributes
from agl_trackers.records import sample_of


@pytest.mark.parametrize(("status", "told"), [("succeeded", 1.692), ("failed", None)])
async def test_only_rewards_that_count_are_told(status, told):
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.resources import Resource

    from agl_trackers.traces import trace_of

    store = agl.InMemoryLightningStore()
    started = await store.start_rollout("a task")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    span = agl.Span.from_attributes(name="r", attributes=reward_attributes(1.692), **ids)
    await store.add_many_spans([span])
    await store.update_attempt(*ids.values(), status=status)
    (rollout,) = await store.wait_for_rollouts(rollout_ids=[started.rollout_id])
    assert (await sample_of(store, rollout)).reward == told
    (attempt,) = await store.query_attempts(started.rollout_id)
    spans = list(await store.query_spans(started.rollout_id))
    trace = trace_of(rollout, attempt, spans, Resource({}))
    assert [one.value for one in trace.rewards] == ([] if told is None else [told])
    [root] = [one for one in trace.spans if one.name == "rollout"]
    is_scored = "evaluations.0.evaluation.score" in (root.attributes or {})
    assert is_scored == any(one.name == "gen_ai.evaluation.result" for one in root.events)
    assert is_scored == (told is not None)
