"""The parts of a store, one by one: queue, claim, span insert, end, query, wait.

Each part is done ``--count`` times on memory, on SQLite and over HTTP, in a store that holds what
the parts before it left. Shown are operations per second (of spans: spans), and the 50th and 99th
percentile of a call. ``wait`` is how long after the end of its rollout a waiting call returns;
``claim, held`` how long after its task is queued. With ``--tracker`` all of it is counted by
agl-metrics, which shows what that costs.

    python benchmarks/store_parts.py --count 1000
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agl
from agl.types import AttemptedRollout, Span

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
BATCH = 10
"""Spans of a call."""
WAITS = 50
"""Each is begun before it is answered, so they take longer than they measure."""

Times = list[float]


async def timed(times: Times, call: Awaitable[Any]) -> Any:
    """The answer; how long it took goes into ``times``."""
    begin = time.perf_counter()
    answer = await call
    times.append(time.perf_counter() - begin)
    return answer


class Parts:
    """The parts of one store, in the order in which they are measured."""

    def __init__(self, store: agl.LightningStore, count: int) -> None:
        self.store, self.count = store, count
        self.claimed: list[AttemptedRollout] = []

    async def enqueue(self, times: Times) -> None:
        for number in range(self.count):
            await timed(times, self.store.enqueue_rollout({"question": number}, mode="train"))

    async def claim(self, times: Times) -> None:
        for _ in range(self.count):
            rollout = await timed(times, self.store.dequeue_rollout("worker"))
            assert rollout is not None
            self.claimed.append(rollout)

    async def insert(self, times: Times) -> None:
        for rollout in self.claimed:
            spans = [
                Span.from_attributes(
                    name="step",
                    rollout_id=rollout.rollout_id,
                    attempt_id=rollout.attempt.attempt_id,
                    attributes={"text": TEXT},
                )
                for _ in range(BATCH)
            ]
            assert len(await timed(times, self.store.add_many_spans(spans))) == BATCH

    async def end(self, times: Times) -> None:
        for rollout in self.claimed:
            ids = rollout.rollout_id, rollout.attempt.attempt_id
            await timed(times, self.store.update_attempt(*ids, status="succeeded"))

    async def query_spans(self, times: Times) -> None:
        for rollout in self.claimed:
            found = await timed(times, self.store.query_spans(rollout.rollout_id, "latest"))
            assert len(found) == BATCH

    async def query_rollout(self, times: Times) -> None:
        for rollout in self.claimed:
            assert await timed(times, self.store.get_rollout_by_id(rollout.rollout_id))

    async def query_page(self, times: Times) -> None:
        for number in range(min(self.count, 100)):
            query = self.store.query_rollouts(status_in=["succeeded"], limit=100, offset=number)
            assert await timed(times, query)

    async def hold_claim(self, times: Times) -> None:
        for _ in range(min(self.count, WAITS)):
            held = asyncio.ensure_future(
                self.store.dequeue_many_rollouts(limit=1, worker_id="worker", wait_seconds=60.0)
            )
            await asyncio.sleep(0.01)  # until it is held
            begin = time.perf_counter()
            await self.store.enqueue_rollout({"question": "held"})
            (rollout,) = await held
            times.append(time.perf_counter() - begin)
            self.claimed.append(rollout)

    async def wait(self, times: Times) -> None:
        for rollout in self.claimed[self.count :]:
            waiting = asyncio.ensure_future(
                self.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60.0)
            )
            await asyncio.sleep(0.01)
            begin = time.perf_counter()
            ids = rollout.rollout_id, rollout.attempt.attempt_id
            await self.store.update_attempt(*ids, status="succeeded")
            assert await waiting
            times.append(time.perf_counter() - begin)

    def all(self) -> list[tuple[str, Callable[[Times], Awaitable[None]], int]]:
        """Name, what is measured, and how many operations a call is."""
        return [
            ("enqueue", self.enqueue, 1),
            ("claim", self.claim, 1),
            (f"insert {BATCH} spans of 1 KB", self.insert, BATCH),
            ("end", self.end, 1),
            ("query the spans of an attempt", self.query_spans, BATCH),
            ("query a rollout", self.query_rollout, 1),
            ("query 100 rollouts by status", self.query_page, 100),
            ("claim, held", self.hold_claim, 1),
            ("wait", self.wait, 1),
        ]


@asynccontextmanager
async def opened(kind: str, folder: Path, tracker: Any) -> AsyncIterator[agl.LightningStore]:
    """A new store of this kind; ``http`` is memory behind a server in this process."""
    inner: agl.LightningStore = agl.InMemoryLightningStore()
    if kind == "sqlite":
        inner = agl.SqliteLightningStore(str(folder / "store.db"))
    if kind != "http":
        store = inner if tracker is None else tracker.watch_store(inner)
        yield store
        await store.close()
        return
    server = agl.LightningStoreServer(inner, port=0, tracker=tracker)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    yield client
    await client.close()
    await server.close()


async def main() -> None:
    """Measure every part of every store, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--stores", nargs="+", default=["memory", "sqlite", "http"])
    parser.add_argument("--tracker", action="store_true", help="count it all by agl-metrics")
    options = parser.parse_args()
    tracker = None
    if options.tracker:
        from agl_metrics import PrometheusMetricsBackend

        tracker = PrometheusMetricsBackend()
    print(f"{'store':8} {'part':32} {'per second':>11} {'p50 ms':>8} {'p99 ms':>8}")
    for kind in options.stores:
        with tempfile.TemporaryDirectory() as folder:
            async with opened(kind, Path(folder), tracker) as store:
                for name, measure, size in Parts(store, options.count).all():
                    times: Times = []
                    await measure(times)
                    rate = size * len(times) / sum(times)
                    cuts = statistics.quantiles(times, n=100, method="inclusive")
                    half, most = cuts[49] * 1000, cuts[98] * 1000
                    print(f"{kind:8} {name:32} {rate:11.0f} {half:8.3f} {most:8.3f}")


if __name__ == "__main__":
    asyncio.run(main())
