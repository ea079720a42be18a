"""The part of the store contract about the queue: what goes in, and who claims it."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from agl.errors import (
    InvalidQueryError,
    InvalidRecordError,
    InvalidTransitionError,
    UnknownRecordError,
)
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig
from agl_testing.store_steps import claim, enqueue, find, latest, report, span_of, status_of


class StoreQueueContract:
    """Enqueueing, claiming, starting, cancelling and putting back."""

    # --- the queue

    async def test_enqueued_rollout_waits_and_keeps_its_fields(self, store: LightningStore) -> None:
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
    async def test_store_copies_what_is_given(self, store: LightningStore, queued: bool) -> None:
        task: dict[str, Any] = {"messages": ["hi"]}
        metadata: dict[str, Any] = {"tags": []}
        make = store.enqueue_rollout if queued else store.start_rollout
        rollout = await make(task, metadata=metadata)
        task["messages"].append("by the caller")
        metadata["tags"].append("by the caller")
        # Records of open attempts are kept beside the file, and written again with a change.
        await store.update_rollout(rollout.rollout_id, mode="val")
        found = await find(store, rollout)
        assert (found.input, found.metadata) == ({"messages": ["hi"]}, {"tags": []})
        new: dict[str, Any] = {"messages": ["new"]}
        await store.update_rollout(rollout.rollout_id, input=new)
        new["messages"].append("by the caller")
        await store.update_rollout(rollout.rollout_id, mode="train")
        found = await find(store, rollout)
        assert found.input == {"messages": ["new"]}

    async def test_store_copies_what_is_read(self, store: LightningStore) -> None:
        def spoil(record: Any) -> None:
            record.metadata["by"] = "a reader"
            if isinstance(record, Rollout):
                record.input["messages"].append("by a reader")
            if isinstance(record, AttemptedRollout):
                (record.attempt.metadata or {})["by"] = "a reader"

        queued = await store.enqueue_rollout({"messages": []}, key="k")
        spoil(queued)
        (again,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=0, key="k")])
        spoil(again)
        claimed = await claim(store, "w")
        assert (claimed.input, claimed.metadata) == ({"messages": []}, {})
        spoil(claimed)
        spoil(await report(store, claimed, "running", metadata={}))
        spoil(await store.update_rollout(claimed.rollout_id, mode="val"))
        spoil(await store.get_rollout_by_id(claimed.rollout_id))
        spoil((await store.query_rollouts())[0])
        spoil(await store.get_latest_attempt(claimed.rollout_id))
        spoil((await store.query_attempts(claimed.rollout_id))[0])
        await report(store, claimed, "succeeded")
        (ended,) = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id])
        spoil(ended)
        last = await store.get_rollout_by_id(claimed.rollout_id)
        assert isinstance(last, AttemptedRollout)
        assert (last.input, last.metadata) == ({"messages": []}, {})
        assert last.attempt.metadata == {}

    async def test_enqueue_many_keeps_the_order(self, store: LightningStore) -> None:
        assert list(await store.enqueue_many_rollouts([])) == []
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

    async def test_claim_with_a_key_is_repeated_until_begun(self, store: LightningStore) -> None:
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

    async def test_claim_with_a_key_is_repeated_if_none_is_left(
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

    async def test_unknown_resources_queue_nothing(self, store: LightningStore) -> None:
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
        await enqueue(store, 5)
        assert [one.input for one in await store.dequeue_many_rollouts(limit=3)] == [0, 1, 2]
        assert list(await store.dequeue_many_rollouts(limit=0)) == []
        assert list(await store.dequeue_many_rollouts(limit=-1)) == []
        assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [3, 4]

    async def test_empty_dequeue_returns_at_once(self, store: LightningStore) -> None:
        begin = time.monotonic()
        assert await store.dequeue_rollout() is None
        assert time.monotonic() - begin < 30.0

    async def test_waiting_dequeue_gets_what_is_enqueued_later(self, store: LightningStore) -> None:
        waiting = asyncio.create_task(claim(store, "w1", 60.0))
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        await store.enqueue_rollout("late")
        assert (await waiting).input == "late"
        assert time.monotonic() - begin < 30.0

    async def test_waiting_dequeue_gives_up_in_time(self, store: LightningStore) -> None:
        begin = time.monotonic()
        assert await store.dequeue_rollout(wait_seconds=0.2) is None
        assert 0.15 < time.monotonic() - begin < 30.0

    async def test_every_waiting_dequeue_is_served(self, store: LightningStore) -> None:
        waiting = [asyncio.create_task(claim(store, None, 20.0)) for _ in range(5)]
        await asyncio.sleep(0.05)
        await enqueue(store, 5)
        assert sorted([one.input for one in await asyncio.gather(*waiting)]) == [0, 1, 2, 3, 4]

    async def test_cancelled_dequeue_takes_nothing(self, store: LightningStore) -> None:
        waiting = [asyncio.create_task(claim(store, None, 20.0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait(waiting[:2])
        await asyncio.sleep(0.1)
        await store.enqueue_rollout("task")
        assert (await waiting[2]).input == "task"

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

    async def test_start_attempt_takes_rollout_off_the_queue(self, store: LightningStore) -> None:
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

    # --- cancelling and putting back

    async def test_cancelled_rollout_leaves_the_queue(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        cancelled = await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert cancelled.end_time is not None
        assert await store.dequeue_rollout() is None

    async def test_result_after_a_cancel_is_kept_and_harmless(self, store: LightningStore) -> None:
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
        put_back = await store.update_rollout(first.rollout_id, status="requeuing")
        assert put_back.status == "requeuing"
        attempt = await latest(store, first)
        assert attempt.status == "failed"
        assert attempt.error is not None
        assert attempt.error.boundary == "cancelled"
        second = await claim(store)
        assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)

    @pytest.mark.parametrize("bad", ["\ud800", "a\0b"])
    async def test_ids_no_database_keeps_are_refused(self, store: LightningStore, bad: str) -> None:
        started = await store.start_rollout("task")
        queued = await store.enqueue_rollout("queued")
        for write in (
            lambda: store.enqueue_rollout(1, key=bad),
            lambda: store.start_rollout(1, key=bad),
            lambda: store.start_rollout(1, worker_id=bad),
            lambda: store.start_attempt(started.rollout_id, bad),
            lambda: store.start_attempt(started.rollout_id, key=bad),
            lambda: store.dequeue_rollout(bad),
            lambda: store.dequeue_many_rollouts(key=bad),
            lambda: store.update_attempt(started.rollout_id, "latest", worker_id=bad),
            lambda: store.update_resources(bad, {}),
            lambda: store.update_worker(bad),
        ):
            with pytest.raises(InvalidRecordError):
                await write()
        for look in (
            lambda: store.get_rollout_by_id(bad),
            lambda: store.get_latest_attempt(bad),
            lambda: store.query_spans(bad),
            lambda: store.get_resources_by_id(bad),
            lambda: store.get_worker_by_id(bad),
            lambda: store.query_workers(worker_id_contains=bad),
            lambda: store.wait_for_rollouts(rollout_ids=[bad]),
        ):
            with suppress(InvalidRecordError):
                assert not await look()
        assert len(await store.query_rollouts()) == 2
        assert len(await store.query_attempts(started.rollout_id)) == 1
        assert await claim(store) == await store.get_rollout_by_id(queued.rollout_id)

    async def test_time_to_wait_is_a_finite_number(self, store: LightningStore) -> None:
        nan = float("nan")
        for wait in (
            store.dequeue_rollout(wait_seconds=nan),
            store.turn(wait_seconds=nan),
            store.wait_for_rollouts(rollout_ids=[], timeout=nan),
        ):
            with pytest.raises(InvalidQueryError, match="finite"):
                await asyncio.wait_for(wait, 10.0)
