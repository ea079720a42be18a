"""The part of the store contract about a runner's whole turn."""

import pytest

from agl.errors import InvalidTransitionError
from agl.store.base import AttemptEnd, LightningStore
from agl.types import AttemptedRollout, Failure
from agl_testing.store_steps import claim, report, span_of, status_of, worker_of


def end_of(rollout: AttemptedRollout, error: Failure | None = None) -> AttemptEnd:
    """How the attempt ended."""
    return AttemptEnd(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        status="failed" if error else "succeeded",
        error=error,
    )


class StoreTurnContract:
    """``turn``: spans, the end, the next claim."""

    async def test_turn_stores_ends_and_claims(self, store: LightningStore) -> None:
        for number in (1, 2):
            await store.enqueue_rollout(number)
        first = await claim(store, "w")
        done = await store.turn(
            [span_of(first), span_of(first)], finish=end_of(first), worker_id="w"
        )
        assert [span.sequence_id for span in done.spans] == [1, 2]
        assert done.attempt == await store.get_latest_attempt(first.rollout_id)
        assert await status_of(store, first) == "succeeded"
        (second,) = done.claimed
        assert second.input == 2
        worker = await worker_of(store, "w")
        assert (worker.status, worker.current_rollout_id) == ("busy", second.rollout_id)

    async def test_turn_ends_with_a_failure(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", worker_id="w")
        failure = Failure(boundary="agent", type="E", message="broke")
        done = await store.turn(finish=end_of(started, failure), limit=0, worker_id="w")
        assert done.attempt is not None
        assert (done.attempt.error, len(done.claimed)) == (failure, 0)
        worker = await worker_of(store, "w")
        assert worker.status == "idle"

    async def test_turn_may_be_repeated(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        span = span_of(started)
        for added in (1, 0):
            done = await store.turn([span], finish=end_of(started), limit=0)
            assert len(done.spans) == added
            assert done.attempt is not None
            assert done.attempt.status == "succeeded"

    async def test_turn_with_a_key_is_repeated_with_its_claim(self, store: LightningStore) -> None:
        for number in (1, 2, 3):
            await store.enqueue_rollout(number)
        first = await claim(store, "w")
        span = span_of(first)
        turns = [
            await store.turn([span], finish=end_of(first), worker_id="w", key="k") for _ in range(2)
        ]
        assert [rollout.input for rollout in turns[0].claimed] == [2]
        assert turns[1].claimed == turns[0].claimed
        assert (await store.statistics()).get("total_attempts") == 2

    async def test_turn_with_a_refused_end_claims_nothing(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await report(store, started, "succeeded")
        queued = await store.enqueue_rollout("next")
        failure = Failure(boundary="agent", type="E", message="broke")
        with pytest.raises(InvalidTransitionError):
            await store.turn([span_of(started)], finish=end_of(started, failure))
        assert await status_of(store, queued) == "queuing"
