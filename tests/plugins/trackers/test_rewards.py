"""What a rollout that did not succeed was given on the way is sent as no reward of it."""

import pytest

from agl_trackers.records import sample_of

from ..inspect.traces import add, reward_span  # noqa: TID252


@pytest.mark.parametrize(("status", "told"), [("succeeded", 1.692), ("failed", None)])
async def test_only_rewards_that_count_are_told(store, status, told):
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.resources import Resource

    from agl_trackers.traces import trace_of

    rollout = await add(store, [reward_span(1.692)], status)
    assert (await sample_of(store, rollout)).reward == told
    (attempt,) = await store.query_attempts(rollout.rollout_id)
    spans = list(await store.query_spans(rollout.rollout_id))
    trace = trace_of(rollout, attempt, spans, Resource({}))
    assert [one.value for one in trace.rewards] == ([] if told is None else [told])
    [root] = [one for one in trace.spans if one.name == "rollout"]
    is_scored = "evaluations.0.evaluation.score" in (root.attributes or {})
    assert is_scored == any(one.name == "gen_ai.evaluation.result" for one in root.events)
    assert is_scored == (told is not None)
