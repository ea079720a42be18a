"""The part of the store contract about threads: any method, any thread, any event loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agl.store.base import LightningStore
from agl.types import EnqueueRolloutRequest
from agl_testing.store_steps import enqueue, report, span_of

T = TypeVar("T")

NUM_THREADS = 4


async def _in_threads(work: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``work(0)`` to ``work(3)``, each in a thread with an event loop of its own."""
    loop = asyncio.get_running_loop()

    def run(index: int) -> T:
        return asyncio.run(work(index))

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return await asyncio.gather(
            *(loop.run_in_executor(pool, run, index) for index in range(NUM_THREADS))
        )


class StoreThreadsContract:
    """Several threads, each with its own event loop."""

    async def test_claimers_in_threads_never_get_the_same(self, store: LightningStore) -> None:
        total = 80
        await enqueue(store, total)

        async def claimer() -> list[Any]:
            taken: list[Any] = []
            while (claimed := await store.dequeue_rollout()) is not None:
                taken.append(claimed.input)
                await report(store, claimed, "succeeded")
            return taken

        async def work(index: int) -> list[Any]:
            lists = await asyncio.gather(*(claimer() for _ in range(3)))
            return [one for taken in lists for one in taken]

        taken = [one for part in await _in_threads(work) for one in part]
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
            claimed = await store.dequeue_rollout(wait_seconds=60.0)
            assert claimed is not None
            return time.monotonic() - claimed.input

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
