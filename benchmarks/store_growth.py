"""Whether cost grows with what is stored: time per operation, and memory of the server.

Time: on an SQLite file in this process, without HTTP, whose constant cost would hide a growth.
With 1,000, 100,000 and (``--million``) 1,000,000 spans stored, each of about 1 KB and 8 to a
rollout, p50 of claiming a rollout, appending 8 spans, and reading the spans of a rollout picked at
random.

Memory: resident set of ``agl store`` while clients run rollouts of 8 spans until ``--spans`` are
stored, and its highest growth over what it was after the first tenth.

    python benchmarks/store_growth.py --million
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

import agl
from agl.cli.shared import print_table
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Span
from agl_bench.payloads import Attributes, SpanDraft
from agl_bench.protocols import Way, best_way, features_of
from agl_bench.server import ServerCost, own_command, served

SPANS_PER_ROLLOUT = 8
TEXT = "The quick brown fox jumps over the lazy dog. " * 20
CHUNK = 500
SAMPLES = 300
CLIENTS = 16


def spans_of(rollout: AttemptedRollout) -> list[Span]:
    """Spans of about 1 KB, unnumbered."""
    return [
        Span.from_attributes(
            name="growth",
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            attributes={"text": TEXT},
        )
        for _ in range(SPANS_PER_ROLLOUT)
    ]


async def fill(store: agl.LightningStore, count: int) -> list[str]:
    """Store so many spans in finished rollouts; their ids."""
    ids: list[str] = []
    left = count // SPANS_PER_ROLLOUT
    while left > 0:
        size = min(left, CHUNK)
        left -= size
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(size)])
        claimed = await store.dequeue_many_rollouts(limit=size)
        await store.add_many_spans([span for rollout in claimed for span in spans_of(rollout)])
        await asyncio.gather(
            *(
                store.update_attempt(r.rollout_id, r.attempt.attempt_id, status="succeeded")
                for r in claimed
            )
        )
        ids += [rollout.rollout_id for rollout in claimed]
    return ids


async def p50_of(operation: Callable[[], Awaitable[object]]) -> float:
    """Median of milliseconds, one call after the other."""
    times: list[float] = []
    for _ in range(SAMPLES):
        begin = time.perf_counter()
        await operation()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


async def time_per_operation(levels: Sequence[int]) -> list[list[object]]:
    """A row for each level."""
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="agl-growth-") as folder:
        store = agl.SqliteLightningStore(Path(folder, "store.db"))
        ids: list[str] = []
        claimed: list[AttemptedRollout] = []

        async def claim() -> None:
            rollout = await store.dequeue_rollout()
            assert rollout is not None
            claimed.append(rollout)

        async def append() -> None:
            await store.add_many_spans(spans_of(claimed.pop()))

        async def read() -> None:
            spans = await store.query_spans(random.choice(ids))
            assert len(spans) == SPANS_PER_ROLLOUT

        for level in levels:
            begin = time.monotonic()
            stored = (await store.statistics())["total_spans"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
            ids += await fill(store, level - stored)
            seconds = time.monotonic() - begin
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=0)] * SAMPLES)
            p50s = [await p50_of(claim), await p50_of(append), await p50_of(read)]
            rows.append([level, *p50s, file_mb(folder), (level - stored) / seconds])
        await store.close()
    return rows


def file_mb(folder: str) -> float:
    """The store's file and its log."""
    return sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6


async def memory(total: int) -> list[tuple[int, float]]:
    """Resident megabytes of the server, by the number of stored spans, in twenty steps."""
    samples: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="agl-growth-") as folder:
        command = own_command(Path(folder, "store.db"))
        with served(command, Path(folder, "server.log")) as url:
            cost = ServerCost(url)
            async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
                way = Way(http, best_way(await features_of(http)), holds=True)
                step = total // SPANS_PER_ROLLOUT // 20
                for number in range(20):
                    samples.append((number * step * SPANS_PER_ROLLOUT, cost.memory_mb()))
                    await way.enqueue(range(step))
                    share = [step // CLIENTS + (n < step % CLIENTS) for n in range(CLIENTS)]
                    await asyncio.gather(*(run(way, f"c{n}", share[n]) for n in range(CLIENTS)))
                samples.append((20 * step * SPANS_PER_ROLLOUT, cost.memory_mb()))
    return samples


async def run(way: Way, worker_id: str, count: int) -> None:
    """Do so many rollouts."""
    attributes = Attributes({"text": TEXT})
    claimed = None
    for number in range(count):
        claimed = claimed or await way.claim(worker_id)
        for _ in range(SPANS_PER_ROLLOUT):
            ids = f"{random.getrandbits(128) | 1:032x}", f"{random.getrandbits(64) | 1:016x}"
            now = time.time()
            await way.emit(claimed, SpanDraft("growth", *ids, None, now, now, attributes))
        # The last one must not claim what is another client's to do.
        claimed = await way.finish(claimed, worker_id, claim_next=number + 1 < count)


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--million", action="store_true", help="also with 1,000,000 spans")
    parser.add_argument("--spans", type=int, default=200_000, help="for the memory of the server")
    options = parser.parse_args()
    levels = [1_000, 100_000] + [1_000_000] * options.million
    rows = asyncio.run(time_per_operation(levels))
    head = ["spans stored", "claim p50 ms", "append 8 p50 ms", "read 8 p50 ms", "file MB"]
    table = [[f"{row[0]:,}", *(f"{cell:.3g}" for cell in row[1:])] for row in rows]
    table.append(["last / first", *(f"{rows[-1][i] / rows[0][i]:.2f}x" for i in (1, 2, 3))])
    print_table([*head, "spans/s while filling"], [[*row, "", ""][:6] for row in table])
    samples = asyncio.run(memory(options.spans))
    settled = next(mb for spans, mb in samples if spans >= options.spans / 10)
    highest = max(mb for _, mb in samples)
    print_table(["spans stored", "server MB"], [[f"{s:,}", f"{mb:.0f}"] for s, mb in samples[::2]])
    print(f"growth after the first tenth: {highest - settled:.0f} MB", end="")
    print(f"; from the start: {highest - samples[0][1]:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
