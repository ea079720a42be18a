"""The part of the store contract about results: statuses, what is tried again, whole turns."""

import asyncio
from typing import Any

import pytest

from agl.errors import InvalidTransitionError, UnknownRecordError
from agl.store.base import LightningStore
from agl.types import AttemptStatus, Failure, RolloutConfig, RolloutStatus
from agl_testing.store_steps import (
    RETRY_ONCE,
    claim,
    end_of,
    find,
    ids_of,
    latest,
    report,
    span_of,
    status_of,
    work_of,
)


class StoreStatusContract:
    """Statuses, retries and turns."""

    # --- statuses

    async def test_success_ends_attempt_and_rollout(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await report(store, started, "running")
        assert await status_of(store, started) == "running"
        attempt = await report(store, started, "succeeded", metadata={"k": 1})
        assert attempt.status == "succeeded"
        assert attempt.end_time is not None
        assert attempt.metadata == {"k": 1}
        rollout = await find(store, started)
        assert rollout.status == "succeeded"
        assert rollout.end_time is not None

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    async def test_failure_ends_rollout(self, store: LightningStore, status: AttemptStatus) -> None:
        started = await store.start_rollout("task")
        attempt = await report(store, started, status)
        assert attempt.status == status
        assert attempt.end_time is not None
        assert await status_of(store, started) == "failed"

    async def test_failure_is_kept_with_its_traceback(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        failure = Failure(boundary="agent", type="ValueError", message="no", traceback="line 1\n")
        await report(store, started, "failed", error=failure)
        attempt = await latest(store, started)
        assert attempt.error == failure

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout", "unresponsive"])
    async def test_same_end_may_repeat(self, store: LightningStore, status: AttemptStatus) -> None:
        started = await store.start_rollout("task")
        attempt = await report(store, started, status)
        assert await report(store, started, status, metadata={"late": True}) == attempt
        assert await store.get_latest_attempt(started.rollout_id) == attempt

    @pytest.mark.parametrize("final", ["succeeded", "failed", "timeout"])
    async def test_attempt_end_is_final(self, store: LightningStore, final: AttemptStatus) -> None:
        started = await store.start_rollout("task")
        await report(store, started, final)
        with pytest.raises(InvalidTransitionError, match=f"'{final}' is final"):
            await report(store, started, "running")
        assert await status_of(store, started) in ("succeeded", "failed")

    async def test_running_does_not_go_back_to_preparing(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await report(store, started, "running")
        with pytest.raises(InvalidTransitionError, match="cannot go from 'running' to 'preparing'"):
            await report(store, started, "preparing")

    async def test_final_rollout_status_is_final(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        with pytest.raises(InvalidTransitionError) as caught:
            await store.update_rollout(rollout.rollout_id, status="running")
        assert str(caught.value) == (
            f"rollout {rollout.rollout_id!r}: cannot go from 'cancelled' to 'running'; "
            "'cancelled' is final"
        )

    async def test_unknown_status_is_refused(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        bad: Any = "done"
        with pytest.raises(ValueError, match="done"):
            await store.update_rollout(started.rollout_id, status=bad)
        with pytest.raises(ValueError, match="done"):
            await report(store, started, bad)

    async def test_running_cannot_be_set_by_hand(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        with pytest.raises(InvalidTransitionError, match="cannot go from 'queuing' to 'running'"):
            await store.update_rollout(rollout.rollout_id, status="running")
        assert await store.dequeue_rollout() is not None

    async def test_update_of_unknown_records(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.update_rollout("ro-none", status="cancelled")
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.update_attempt("ro-none", "latest", status="running")
        with pytest.raises(UnknownRecordError, match="at-none"):
            await store.update_attempt(started.rollout_id, "at-none", status="running")

    async def test_update_rollout_changes_what_is_given(self, store: LightningStore) -> None:
        resources = await store.add_resources({})
        rollout = await store.enqueue_rollout("task", mode="train", metadata={"a": 1})
        assert rollout.resources_id == resources.resources_id
        changed = await store.update_rollout(
            rollout.rollout_id, input=[1], config=RolloutConfig(max_attempts=5), metadata=None
        )
        assert (changed.input, changed.mode, changed.metadata) == ([1], "train", None)
        assert changed.config.max_attempts == 5
        assert changed.resources_id == resources.resources_id
        changed = await store.update_rollout(rollout.rollout_id, mode=None, resources_id=None)
        assert (changed.mode, changed.resources_id, changed.status) == (None, None, "queuing")

    async def test_update_only_while_it_has_a_status(self, store: LightningStore) -> None:
        rollout_id = (await store.enqueue_rollout("task")).rollout_id
        queued: list[RolloutStatus] = ["queuing", "requeuing"]
        claimed = await claim(store)
        with pytest.raises(InvalidTransitionError, match="'preparing', not"):
            await store.update_rollout(rollout_id, status="cancelled", if_status=queued)
        assert (await report(store, claimed, "succeeded")).status == "succeeded"
        waiting = (await store.enqueue_rollout("other")).rollout_id
        ended = await store.update_rollout(waiting, status="cancelled", if_status=queued)
        assert ended.status == "cancelled"

    async def test_update_attempt_by_latest(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        second = await store.start_attempt(first.rollout_id)
        attempt = await store.update_attempt(
            first.rollout_id, "latest", worker_id="w7", metadata={"a": 1}
        )
        assert attempt.attempt_id == second.attempt.attempt_id
        assert (attempt.worker_id, attempt.last_heartbeat_time) == ("w7", None)
        assert attempt.metadata == {"a": 1}
        assert attempt.status == "preparing"

    # --- retries

    async def test_failure_is_retried_while_attempts_are_left(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task", config=RETRY_ONCE)
        first = await claim(store)
        await report(store, first, "failed")
        assert await status_of(store, first) == "requeuing"
        second = await claim(store)
        assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)
        await report(store, second, "failed")
        assert await status_of(store, first) == "failed"
        assert await store.dequeue_rollout() is None

    async def test_failure_outside_retry_condition_is_final(self, store: LightningStore) -> None:
        config = RolloutConfig(max_attempts=5, retry_condition=["timeout"])
        started = await store.start_rollout("task", config=config)
        await report(store, started, "failed")
        assert await status_of(store, started) == "failed"

    async def test_retried_rollout_goes_to_the_end_of_queue(self, store: LightningStore) -> None:
        await store.enqueue_rollout("retried", config=RETRY_ONCE)
        first = await claim(store)
        await store.enqueue_rollout("other")
        await report(store, first, "failed")
        assert (await claim(store)).input == "other"
        assert (await claim(store)).input == "retried"

    async def test_retry_wakes_a_waiting_dequeue(self, store: LightningStore) -> None:
        first = await store.start_rollout("task", config=RETRY_ONCE)
        waiting = asyncio.create_task(claim(store, None, 20.0))
        await asyncio.sleep(0.05)
        await report(store, first, "failed")
        assert (await waiting).attempt.sequence_id == 2

    async def test_late_result_of_an_older_attempt_is_its_own(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        second = await store.start_attempt(first.rollout_id)
        late = await report(store, first, "succeeded")
        assert late.status == "succeeded"
        assert await status_of(store, first) == "preparing"
        assert await store.get_latest_attempt(first.rollout_id) == second.attempt
        await report(store, second, "failed")
        assert await status_of(store, first) == "failed"

    # --- turns: spans, the end, the next claim

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
        assert await work_of(store, "w") == ("busy", *ids_of(second))

    async def test_turn_ends_with_a_failure(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", worker_id="w")
        failure = Failure(boundary="agent", type="E", message="broke")
        done = await store.turn(finish=end_of(started, failure), limit=0, worker_id="w")
        assert done.attempt is not None
        assert (done.attempt.error, len(done.claimed)) == (failure, 0)
        assert await work_of(store, "w") == ("idle", None, None)

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
