"""The part of the store contract about time: deadlines, clocks, waiting, threads."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from agl.errors import InvalidTransitionError, StoreError
from agl.store.base import LightningStore
from agl.types import EnqueueRolloutRequest, RolloutConfig
from agl_testing.store_steps import (
    RETRY_ONCE,
    claim,
    enqueue,
    ids_of,
    latest,
    report,
    span_of,
    status_of,
    until,
)

T = TypeVar("T")

NUM_THREADS = 4


async def _in_threads(work: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``work(0)`` to ``work(3)``, each in a thread with an event loop of its own."""
    return await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, work(index)) for index in range(NUM_THREADS))
    )


class StoreTimeContract:
    """Deadlines, clocks, waiting; several threads, each with its own event loop."""

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

    async def test_silent_attempt_is_unresponsive_and_retried(self, store: LightningStore) -> None:
        config = RETRY_ONCE.model_copy(update={"unresponsive_seconds": 0.3})
        await store.enqueue_rollout("task", config=config)
        first = await claim(store)
        second = await claim(store, None, 20.0)
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
                await store.update_attempt(*ids_of(started), last_heartbeat_time=time.time())
        assert await status_of(store, started) == "running"

    async def test_late_span_revives_an_unresponsive_attempt(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", config=RETRY_ONCE)
        await report(store, started, "unresponsive")
        assert await status_of(store, started) == "requeuing"
        await store.add_span(span_of(started))
        attempt = await latest(store, started)
        assert (attempt.status, attempt.end_time, attempt.error) == ("running", None, None)
        assert await status_of(store, started) == "running"
        assert await store.dequeue_rollout() is None

    async def test_late_result_of_unresponsive_attempt_counts(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", config=RETRY_ONCE)
        await report(store, started, "unresponsive")
        await report(store, started, "succeeded")
        assert await status_of(store, started) == "succeeded"
        assert await store.dequeue_rollout() is None

    async def test_superseded_attempt_is_not_revived(self, store: LightningStore) -> None:
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
    async def test_heartbeat_counts_when_it_comes(self, store: LightningStore, skew: float) -> None:
        config = RolloutConfig(unresponsive_seconds=60.0)
        started = await store.start_rollout("task", config=config)
        late = await store.start_rollout("late", config=RolloutConfig(timeout_seconds=0.1))
        beat = time.time() + skew
        attempt = await store.update_attempt(*ids_of(started), last_heartbeat_time=beat)
        assert attempt.last_heartbeat_time == pytest.approx(time.time(), abs=60)
        assert await store.get_latest_attempt(started.rollout_id) == attempt
        await until(store, late, "timeout")  # by then the store has looked at both
        assert await status_of(store, started) == "preparing"

    async def test_runner_with_a_fast_clock_is_missed_in_time(self, store: LightningStore) -> None:
        config = RolloutConfig(unresponsive_seconds=0.3)
        started = await store.start_rollout("task", config=config)
        await store.update_attempt(*ids_of(started), last_heartbeat_time=time.time() + 3600)
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

    async def test_close_wakes_who_waits(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        ids = [started.rollout_id]
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(store.dequeue_rollout(wait_seconds=60.0)),
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=60.0)),
        ]
        await asyncio.sleep(0.2)  # who does not wait yet is refused, which is an answer as well
        await store.close()
        async with asyncio.timeout(30.0):
            answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [one for one in answers if one and not isinstance(one, StoreError)] == []

    # --- threads

    async def test_claimers_in_threads_never_get_the_same(self, store: LightningStore) -> None:
        total = 80
        await enqueue(store, total)
        taken: list[Any] = []

        async def claimer() -> None:
            while (claimed := await store.dequeue_rollout()) is not None:
                taken.append(claimed.input)
                await report(store, claimed, "succeeded")

        async def work(index: int) -> None:
            await asyncio.gather(*(claimer() for _ in range(3)))

        await _in_threads(work)
        assert sorted(taken) == list(range(total))
        assert (await store.query_rollouts(status_in=["succeeded"])).total == total

    async def test_spans_from_threads_have_gapless_numbers(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")

        async def work(index: int) -> None:
            for _ in range(5):
                await store.add_many_spans([span_of(started), span_of(started)])

        await _in_threads(work)
        spans = await store.query_spans(started.rollout_id)
        assert [span.sequence_id for span in spans] == list(range(1, 10 * NUM_THREADS + 1))

    async def test_rollout_queued_in_one_thread_wakes_another(self, store: LightningStore) -> None:
        waiting = threading.Barrier(NUM_THREADS)

        async def work(index: int) -> float:
            if index == 0:
                waiting.wait(20.0)
                await asyncio.sleep(0.1)
                await store.enqueue_many_rollouts(
                    [EnqueueRolloutRequest(input=time.monotonic()) for _ in range(NUM_THREADS - 1)]
                )
                return 0.0
            waiting.wait(20.0)
            # Who is not woken waits to the end of this minute.
            return time.monotonic() - (await claim(store, None, 60.0)).input

        assert max(await _in_threads(work)) < 30.0

    async def test_end_in_one_thread_wakes_another(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")

        async def work(index: int) -> int:
            if index == 0:
                await asyncio.sleep(0.1)
                await report(store, started, "succeeded")
                return 1
            ended = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=20.0)
            return len(ended)

        assert await _in_threads(work) == [1] * NUM_THREADS
