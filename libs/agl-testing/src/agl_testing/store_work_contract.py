"""The part of the store contract about work: queue, attempts, statuses, retries, deadlines."""

import asyncio
import time
from typing import Any, Literal

import pytest

from agl.errors import InvalidTransitionError, UnknownRecordError
from agl.store.base import LightningStore
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Failure,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
)

RETRY_ONCE = RolloutConfig(max_attempts=2, retry_condition=["failed", "timeout", "unresponsive"])


def span_of(rollout: AttemptedRollout, name: str = "step", **fields: Any) -> Span:
    """A span of the attempt, without a number."""
    return Span.from_attributes(
        attributes=fields.pop("attributes", {"i": 1}),
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        name=name,
        **fields,
    )


async def claim(store: LightningStore, worker_id: str | None = None) -> AttemptedRollout:
    """Claim what must be there."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


async def report(
    store: LightningStore, rollout: AttemptedRollout, status: AttemptStatus, **more: Any
) -> Attempt:
    """Report the status of the attempt."""
    return await store.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, status=status, **more
    )


async def status_of(store: LightningStore, rollout: Rollout) -> RolloutStatus:
    """The rollout's status now."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found.status


async def until(store: LightningStore, rollout: Rollout, status: AttemptStatus) -> Attempt:
    """The latest attempt once the watchdog has given it this status; 20 seconds at most."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        if attempt is not None and attempt.status == status:
            return attempt
        await asyncio.sleep(0.02)
    raise AssertionError(f"the latest attempt of {rollout.rollout_id!r} never became {status!r}")


class StoreWorkContract:
    """Queue, attempts, statuses, retries, deadlines."""

    # --- the queue

    async def test_enqueued_rollout_is_queuing_and_keeps_its_fields(
        self, store: LightningStore
    ) -> None:
        config = RolloutConfig(max_attempts=3)
        rollout = await store.enqueue_rollout(
            {"q": ["x", 1, None]}, mode="val", config=config, metadata={"a": 1}
        )
        assert rollout.status == "queuing"
        assert (rollout.mode, rollout.config, rollout.metadata) == ("val", config, {"a": 1})
        assert rollout.input == {"q": ["x", 1, None]}
        assert abs(rollout.start_time - time.time()) < 60
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout

    async def test_rollout_without_metadata_has_empty_ones(self, store: LightningStore) -> None:
        for rollout in (await store.enqueue_rollout("task"), await store.start_rollout("task")):
            assert rollout.metadata == {}
            assert await store.get_rollout_by_id(rollout.rollout_id) == rollout

    async def test_request_may_be_given_field_by_field(self, store: LightningStore) -> None:
        request = EnqueueRolloutRequest(
            input=1,
            mode="val",
            config=RolloutConfig(max_attempts=2),
            metadata={"a": 1},
            key="unique",
        )
        fields = {name: getattr(request, name) for name in EnqueueRolloutRequest.model_fields}
        first = await store.enqueue_rollout(**fields)
        assert (first.mode, first.metadata, first.config) == ("val", {"a": 1}, request.config)
        assert await store.enqueue_rollout(2, key="unique") == first
        assert (await store.query_rollouts()).total == 1

    @pytest.mark.parametrize("queued", [True, False])
    async def test_what_a_caller_does_to_its_own_does_not_reach_the_store(
        self, store: LightningStore, queued: bool
    ) -> None:
        task: dict[str, Any] = {"messages": ["hi"]}
        metadata: dict[str, Any] = {"tags": []}
        make = store.enqueue_rollout if queued else store.start_rollout
        rollout = await make(task, metadata=metadata)
        task["messages"].append("by the caller")
        metadata["tags"].append("by the caller")
        # Records of open attempts are kept beside the file, and written again with a change.
        await store.update_rollout(rollout.rollout_id, mode="val")
        found = await store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        assert (found.input, found.metadata) == ({"messages": ["hi"]}, {"tags": []})
        new: dict[str, Any] = {"messages": ["new"]}
        await store.update_rollout(rollout.rollout_id, input=new)
        new["messages"].append("by the caller")
        await store.update_rollout(rollout.rollout_id, mode="train")
        found = await store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        assert found.input == {"messages": ["new"]}

    async def test_what_a_reader_does_to_its_own_does_not_reach_the_store(
        self, store: LightningStore
    ) -> None:
        def spoil(rollout: Any) -> None:
            rollout.input["messages"].append("by a reader")
            rollout.metadata["by"] = "a reader"
            if isinstance(rollout, AttemptedRollout):
                (rollout.attempt.metadata or {})["by"] = "a reader"

        queued = await store.enqueue_rollout({"messages": []}, key="k")
        spoil(queued)
        (again,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=0, key="k")])
        spoil(again)
        claimed = await claim(store, "w")
        assert (claimed.input, claimed.metadata) == ({"messages": []}, {})
        spoil(claimed)
        attempt = await report(store, claimed, "running", metadata={})
        (attempt.metadata or {})["by"] = "a reader"
        spoil(await store.update_rollout(claimed.rollout_id, mode="val"))
        spoil(await store.get_rollout_by_id(claimed.rollout_id))
        spoil((await store.query_rollouts())[0])
        for found in (
            await store.get_latest_attempt(claimed.rollout_id),
            (await store.query_attempts(claimed.rollout_id))[0],
        ):
            assert found is not None
            assert found.metadata is not None
            found.metadata["by"] = "a reader"
        await report(store, claimed, "succeeded")
        (ended,) = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id])
        spoil(ended)
        last = await store.get_rollout_by_id(claimed.rollout_id)
        assert isinstance(last, AttemptedRollout)
        assert (last.input, last.metadata) == ({"messages": []}, {})
        assert last.attempt.metadata == {}

    async def test_enqueue_many_keeps_the_order(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input=i) for i in range(20)]
        rollouts = await store.enqueue_many_rollouts(requests)
        assert [rollout.input for rollout in rollouts] == list(range(20))
        assert len({rollout.rollout_id for rollout in rollouts}) == 20
        claimed = await store.dequeue_many_rollouts(limit=20)
        assert [rollout.input for rollout in claimed] == list(range(20))

    async def test_task_with_a_key_is_queued_once(self, store: LightningStore) -> None:
        first = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=1, key="a"), EnqueueRolloutRequest(input=2)]
        )
        again = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=n, key=key) for n, key in enumerate("bab")]
        )
        assert again[1] == first[0]
        assert again[0] == again[2]
        assert [rollout.input for rollout in again] == [0, 1, 0]
        assert (await store.query_rollouts()).total == 3
        claimed = await store.dequeue_many_rollouts(limit=10)
        assert [rollout.input for rollout in claimed] == [1, 2, 0]
        (now,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=9, key="a")])
        assert (now.rollout_id, now.status) == (first[0].rollout_id, "preparing")

    async def test_claim_with_a_key_is_answered_again_until_it_is_begun(
        self, store: LightningStore
    ) -> None:
        for number in range(4):
            await store.enqueue_rollout({"n": [number]})
        first = await store.dequeue_many_rollouts(limit=2, worker_id="w", key="k")
        assert [rollout.input for rollout in first] == [{"n": [0]}, {"n": [1]}]
        again = await store.dequeue_many_rollouts(limit=2, worker_id="w", key="k")
        assert again == first
        await store.add_span(span_of(first[0]))
        rest = await store.dequeue_many_rollouts(limit=2, worker_id="w", key="k")
        assert [rollout.rollout_id for rollout in rest] == [first[1].rollout_id]
        await store.update_rollout(first[1].rollout_id, status="cancelled")
        new = await store.dequeue_many_rollouts(limit=1, worker_id="w", key="k")
        assert [rollout.input for rollout in new] == [{"n": [2]}]
        assert (await store.statistics()).get("total_attempts") == 3

    async def test_claim_with_a_key_is_answered_again_from_an_empty_queue(
        self, store: LightningStore
    ) -> None:
        await store.enqueue_rollout(1)
        (first,) = await store.dequeue_many_rollouts(worker_id="w", key="k")
        (again,) = await store.dequeue_many_rollouts(worker_id="w", key="k", wait_seconds=5)
        assert again == first
        assert not await store.dequeue_many_rollouts(worker_id="w", key="other")

    async def test_rollout_with_a_key_is_started_once(self, store: LightningStore) -> None:
        first = await store.start_rollout(1, worker_id="w", key="k")
        assert await store.start_rollout(2, worker_id="w", key="k") == first
        (queued,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=3, key="q")])
        started = await store.start_rollout(3, key="q")
        assert (started.rollout_id, started.status) == (queued.rollout_id, "preparing")
        assert (await store.query_rollouts()).total == 2

    async def test_attempt_with_a_key_is_started_once(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout(1)
        first = await store.start_attempt(rollout.rollout_id, "w", key="k")
        assert await store.start_attempt(rollout.rollout_id, "w", key="k") == first
        other = await store.start_attempt(rollout.rollout_id, "w", key="l")
        assert other.attempt.sequence_id == 2
        assert (await store.query_attempts(rollout.rollout_id)).total == 2

    async def test_enqueue_nothing(self, store: LightningStore) -> None:
        assert list(await store.enqueue_many_rollouts([])) == []

    async def test_enqueue_with_unknown_resources_queues_nothing(
        self, store: LightningStore
    ) -> None:
        requests = [
            EnqueueRolloutRequest(input=1),
            EnqueueRolloutRequest(input=2, resources_id="rs-none"),
        ]
        with pytest.raises(UnknownRecordError, match="rs-none"):
            await store.enqueue_many_rollouts(requests)
        assert await store.dequeue_rollout() is None
        assert (await store.query_rollouts()).total == 0

    async def test_dequeue_makes_a_preparing_attempt(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        claimed = await claim(store, "w1")
        assert claimed.rollout_id == rollout.rollout_id
        assert claimed.status == "preparing"
        assert claimed.attempt.status == "preparing"
        assert claimed.attempt.sequence_id == 1
        assert claimed.attempt.worker_id == "w1"
        assert await store.get_rollout_by_id(rollout.rollout_id) == claimed

    async def test_claimed_rollout_is_not_claimed_twice(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        await claim(store)
        assert await store.dequeue_rollout() is None

    async def test_dequeue_many_takes_at_most_limit(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(5)])
        assert [one.input for one in await store.dequeue_many_rollouts(limit=3)] == [0, 1, 2]
        assert list(await store.dequeue_many_rollouts(limit=0)) == []
        assert list(await store.dequeue_many_rollouts(limit=-1)) == []
        assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [3, 4]

    async def test_empty_dequeue_returns_at_once(self, store: LightningStore) -> None:
        begin = time.monotonic()
        assert await store.dequeue_rollout() is None
        assert time.monotonic() - begin < 30.0

    async def test_waiting_dequeue_gets_what_is_enqueued_later(self, store: LightningStore) -> None:
        waiting = asyncio.create_task(store.dequeue_rollout("w1", wait_seconds=60.0))
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        await store.enqueue_rollout("late")
        claimed = await waiting
        assert claimed is not None
        assert claimed.input == "late"
        assert time.monotonic() - begin < 30.0

    async def test_waiting_dequeue_gives_up_in_time(self, store: LightningStore) -> None:
        begin = time.monotonic()
        assert await store.dequeue_rollout(wait_seconds=0.2) is None
        assert 0.15 < time.monotonic() - begin < 30.0

    async def test_every_waiting_dequeue_is_served(self, store: LightningStore) -> None:
        waiting = [asyncio.create_task(store.dequeue_rollout(wait_seconds=20.0)) for _ in range(5)]
        await asyncio.sleep(0.05)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(5)])
        claimed = await asyncio.gather(*waiting)
        assert sorted(one.input for one in claimed if one) == [0, 1, 2, 3, 4]

    async def test_cancelled_dequeue_takes_nothing(self, store: LightningStore) -> None:
        waiting = [asyncio.create_task(store.dequeue_rollout(wait_seconds=20.0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait(waiting[:2])
        await asyncio.sleep(0.1)
        await store.enqueue_rollout("task")
        claimed = await waiting[2]
        assert claimed is not None
        assert claimed.input == "task"

    async def test_agent_that_changes_its_input_changes_no_record(
        self, store: LightningStore
    ) -> None:
        task = {"messages": ["hi"]}
        rollout = await store.enqueue_rollout(task)
        task["messages"].append("by the caller")
        claimed = await claim(store)
        claimed.input["messages"].append("by the agent")
        found = await store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        assert found.input == {"messages": ["hi"]}

    # --- starting without the queue

    async def test_start_rollout_passes_the_queue(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", mode="test", worker_id="w1")
        assert (started.status, started.mode) == ("preparing", "test")
        assert (started.attempt.sequence_id, started.attempt.worker_id) == (1, "w1")
        assert await store.dequeue_rollout() is None

    async def test_start_attempt_numbers_attempts(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        second = await store.start_attempt(first.rollout_id, worker_id="w2")
        assert second.attempt.sequence_id == 2
        assert second.attempt.attempt_id != first.attempt.attempt_id
        assert second.attempt.worker_id == "w2"
        assert await store.get_latest_attempt(first.rollout_id) == second.attempt

    async def test_start_attempt_takes_the_rollout_off_the_queue(
        self, store: LightningStore
    ) -> None:
        rollout = await store.enqueue_rollout("task")
        assert (await store.start_attempt(rollout.rollout_id)).status == "preparing"
        assert await store.dequeue_rollout() is None

    async def test_start_attempt_of_unknown_or_ended_rollout(self, store: LightningStore) -> None:
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.start_attempt("ro-none")
        started = await store.start_rollout("task")
        await report(store, started, "succeeded")
        with pytest.raises(InvalidTransitionError, match="'succeeded' is final"):
            await store.start_attempt(started.rollout_id)

    # --- statuses

    async def test_success_ends_attempt_and_rollout(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await report(store, started, "running")
        assert await status_of(store, started) == "running"
        attempt = await report(store, started, "succeeded", metadata={"k": 1})
        assert attempt.status == "succeeded"
        assert attempt.end_time is not None
        assert attempt.metadata == {"k": 1}
        rollout = await store.get_rollout_by_id(started.rollout_id)
        assert rollout is not None
        assert rollout.status == "succeeded"
        assert rollout.end_time is not None

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    async def test_failure_without_retry_ends_the_rollout(
        self, store: LightningStore, status: Literal["failed", "timeout", "unresponsive"]
    ) -> None:
        started = await store.start_rollout("task")
        attempt = await report(store, started, status)
        assert attempt.status == status
        assert attempt.end_time is not None
        assert await status_of(store, started) == "failed"

    async def test_failure_is_kept_with_its_traceback(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        failure = Failure(boundary="agent", type="ValueError", message="no", traceback="line 1\n")
        await report(store, started, "failed", error=failure)
        attempt = await store.get_latest_attempt(started.rollout_id)
        assert attempt is not None
        assert attempt.error == failure

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout", "unresponsive"])
    async def test_same_final_status_again_changes_nothing(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        started = await store.start_rollout("task")
        attempt = await report(store, started, status)
        assert await report(store, started, status, metadata={"late": True}) == attempt
        assert await store.get_latest_attempt(started.rollout_id) == attempt

    @pytest.mark.parametrize("final", ["succeeded", "failed", "timeout"])
    async def test_final_attempt_status_is_final(
        self, store: LightningStore, final: AttemptStatus
    ) -> None:
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

    # --- cancelling and putting back

    async def test_cancelled_rollout_leaves_the_queue(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        cancelled = await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert cancelled.end_time is not None
        assert await store.dequeue_rollout() is None

    async def test_result_after_cancelling_is_kept_and_harmless(
        self, store: LightningStore
    ) -> None:
        started = await store.start_rollout("task")
        await report(store, started, "running")
        await store.update_rollout(started.rollout_id, status="cancelled")
        await store.add_span(span_of(started))
        attempt = await report(store, started, "succeeded")
        assert attempt.status == "succeeded"
        assert await store.get_latest_attempt(started.rollout_id) == attempt
        assert await status_of(store, started) == "cancelled"
        assert (await store.query_spans(started.rollout_id)).total == 1

    async def test_rollout_put_back_by_hand_is_claimed_again(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        await store.update_rollout(first.rollout_id, status="requeuing")
        attempt = await store.get_latest_attempt(first.rollout_id)
        assert attempt is not None
        assert attempt.status == "failed"
        assert attempt.error is not None
        assert attempt.error.boundary == "cancelled"
        second = await claim(store)
        assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)

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

    async def test_failure_outside_the_retry_condition_is_final(
        self, store: LightningStore
    ) -> None:
        config = RolloutConfig(max_attempts=5, retry_condition=["timeout"])
        started = await store.start_rollout("task", config=config)
        await report(store, started, "failed")
        assert await status_of(store, started) == "failed"

    async def test_retried_rollout_goes_to_the_end_of_the_queue(
        self, store: LightningStore
    ) -> None:
        await store.enqueue_rollout("retried", config=RETRY_ONCE)
        first = await claim(store)
        await store.enqueue_rollout("other")
        await report(store, first, "failed")
        assert (await claim(store)).input == "other"
        assert (await claim(store)).input == "retried"

    async def test_retry_wakes_a_waiting_dequeue(self, store: LightningStore) -> None:
        first = await store.start_rollout("task", config=RETRY_ONCE)
        waiting = asyncio.create_task(store.dequeue_rollout(wait_seconds=20.0))
        await asyncio.sleep(0.05)
        await report(store, first, "failed")
        second = await waiting
        assert second is not None
        assert second.attempt.sequence_id == 2

    async def test_late_result_of_an_older_attempt_touches_nothing_else(
        self, store: LightningStore
    ) -> None:
        first = await store.start_rollout("task")
        second = await store.start_attempt(first.rollout_id)
        late = await report(store, first, "succeeded")
        assert late.status == "succeeded"
        assert await status_of(store, first) == "preparing"
        assert await store.get_latest_attempt(first.rollout_id) == second.attempt
        await report(store, second, "failed")
        assert await status_of(store, first) == "failed"

    # --- deadlines

    async def test_attempt_over_its_time_times_out(self, store: LightningStore) -> None:
        config = RolloutConfig(timeout_seconds=0.1)
        await store.enqueue_rollout("task", config=config)
        claimed = await claim(store, "w1")
        attempt = await until(store, claimed, "timeout")
        assert attempt.end_time is not None
        assert attempt.error is not None
        assert attempt.error.boundary == "timeout"
        assert await status_of(store, claimed) == "failed"
        with pytest.raises(InvalidTransitionError, match="'timeout' is final"):
            await report(store, claimed, "succeeded")

    async def test_silent_attempt_becomes_unresponsive_and_is_retried(
        self, store: LightningStore
    ) -> None:
        config = RETRY_ONCE.model_copy(update={"unresponsive_seconds": 0.3})
        await store.enqueue_rollout("task", config=config)
        first = await claim(store)
        second = await store.dequeue_rollout(wait_seconds=20.0)
        assert second is not None
        assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)
        attempts = await store.query_attempts(first.rollout_id)
        assert attempts[0].status == "unresponsive"
        assert attempts[0].error is not None
        assert attempts[0].error.boundary == "lost"

    async def test_waiting_for_a_rollout_sees_its_deadline(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", config=RolloutConfig(timeout_seconds=0.1))
        ended = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=20.0)
        assert [rollout.status for rollout in ended] == ["failed"]

    async def test_signs_of_life_keep_an_attempt_alive(self, store: LightningStore) -> None:
        config = RETRY_ONCE.model_copy(update={"unresponsive_seconds": 1.0})
        started = await store.start_rollout("task", config=config)
        for index in range(6):
            await asyncio.sleep(0.3)
            if index % 2:
                await store.add_span(span_of(started))
            else:
                await store.update_attempt(
                    started.rollout_id, "latest", last_heartbeat_time=time.time()
                )
        assert await status_of(store, started) == "running"

    async def test_late_span_revives_an_unresponsive_attempt(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", config=RETRY_ONCE)
        await report(store, started, "unresponsive")
        assert await status_of(store, started) == "requeuing"
        await store.add_span(span_of(started))
        attempt = await store.get_latest_attempt(started.rollout_id)
        assert attempt is not None
        assert (attempt.status, attempt.end_time, attempt.error) == ("running", None, None)
        assert await status_of(store, started) == "running"
        assert await store.dequeue_rollout() is None

    async def test_late_result_of_an_unresponsive_attempt_counts(
        self, store: LightningStore
    ) -> None:
        started = await store.start_rollout("task", config=RETRY_ONCE)
        await report(store, started, "unresponsive")
        await report(store, started, "succeeded")
        assert await status_of(store, started) == "succeeded"
        assert await store.dequeue_rollout() is None

    async def test_superseded_unresponsive_attempt_is_not_revived(
        self, store: LightningStore
    ) -> None:
        first = await store.start_rollout("task", config=RETRY_ONCE)
        await report(store, first, "unresponsive")
        second = await claim(store)
        await store.add_span(span_of(first))
        attempts = await store.query_attempts(first.rollout_id)
        assert [attempt.status for attempt in attempts] == ["unresponsive", "preparing"]
        with pytest.raises(InvalidTransitionError, match="newer attempt"):
            await report(store, first, "running")
        assert (await report(store, first, "failed")).status == "failed"
        assert await store.get_latest_attempt(first.rollout_id) == second.attempt

    async def test_deadline_changed_by_hand_holds(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await store.update_rollout(started.rollout_id, config=RolloutConfig(timeout_seconds=0.05))
        await until(store, started, "timeout")

    # --- clocks

    @pytest.mark.parametrize("skew", [-3600.0, 3600.0])
    async def test_heartbeat_counts_when_it_comes_whatever_time_it_carries(
        self, store: LightningStore, skew: float
    ) -> None:
        config = RolloutConfig(unresponsive_seconds=60.0)
        started = await store.start_rollout("task", config=config)
        late = await store.start_rollout("late", config=RolloutConfig(timeout_seconds=0.1))
        attempt = await store.update_attempt(
            started.rollout_id, "latest", last_heartbeat_time=time.time() + skew
        )
        assert attempt.last_heartbeat_time is not None
        assert abs(attempt.last_heartbeat_time - time.time()) < 60
        assert await store.get_latest_attempt(started.rollout_id) == attempt
        await until(store, late, "timeout")  # by then the store has looked at both
        assert await status_of(store, started) == "preparing"

    async def test_runner_whose_clock_is_ahead_is_missed_in_time(
        self, store: LightningStore
    ) -> None:
        config = RolloutConfig(unresponsive_seconds=0.3)
        started = await store.start_rollout("task", config=config)
        await store.update_attempt(
            started.rollout_id, "latest", last_heartbeat_time=time.time() + 3600
        )
        await until(store, started, "unresponsive")

    @pytest.mark.parametrize("jump", [-3600.0, 3600.0])
    async def test_setting_the_clock_moves_no_deadline(
        self, store: LightningStore, monkeypatch: pytest.MonkeyPatch, jump: float
    ) -> None:
        limits = RolloutConfig(timeout_seconds=600, unresponsive_seconds=600)
        well = await store.start_rollout("well", config=limits)
        late = await store.start_rollout("late", config=RolloutConfig(timeout_seconds=0.5))
        silent = await store.start_rollout("silent", config=RolloutConfig(unresponsive_seconds=0.5))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        await until(store, late, "timeout")
        await until(store, silent, "unresponsive")
        assert await status_of(store, well) == "preparing"
        ended = await report(store, well, "succeeded")
        assert ended.end_time is not None
        assert ended.start_time <= ended.end_time <= ended.start_time + 60

    # --- waiting for the end

    async def test_wait_returns_the_ended_in_order(self, store: LightningStore) -> None:
        started = [await store.start_rollout(i) for i in range(3)]
        for one in (started[2], started[0]):
            await report(store, one, "succeeded")
        wanted = [started[2].rollout_id, "ro-none", started[1].rollout_id, started[0].rollout_id]
        ended = await store.wait_for_rollouts(rollout_ids=wanted, timeout=0)
        assert [rollout.rollout_id for rollout in ended] == [wanted[0], wanted[3]]

    async def test_wait_ends_with_the_last_rollout(self, store: LightningStore) -> None:
        started = [await store.start_rollout(i) for i in range(3)]
        waiting = asyncio.create_task(
            store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in started])
        )
        for one in started:
            await asyncio.sleep(0.03)
            assert not waiting.done()
            await report(store, one, "failed")
        assert len(await waiting) == 3

    async def test_wait_gives_up_in_time(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        begin = time.monotonic()
        ended = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0.15)
        assert list(ended) == []
        assert 0.1 < time.monotonic() - begin < 30.0

    async def test_wait_does_not_wait_for_unknown_rollouts(self, store: LightningStore) -> None:
        assert list(await store.wait_for_rollouts(rollout_ids=["ro-none"])) == []
        assert list(await store.wait_for_rollouts(rollout_ids=[])) == []
