"""What one thing at a store costs everything beside it; each figure is a ratio or a longest wait.

    python benchmarks/neighbours.py [rewards] [read] [refusals] [--rounds 5]

- rewards: rollouts per second of 32 coroutine agents over HTTP and SQLite, each of 50 ms; with four
  rewards each against none
- read: the longest health check of a store server while another process reads a trace of 50 MB,
  many spans or few long ones
- refusals: rollouts per second of a store in this process; with one late report per rollout against
  none, and against one report more that is accepted

The kinds take turns. A server is a process of its own, as are readers.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

import agl
from agl.errors import AglError
from agl.types import EnqueueRolloutRequest, Span
from agl_bench.server import own_command, served
from agl_sqlite import SqliteLightningStore

READ = """
import asyncio, aiohttp, sys
async def main():
    async with aiohttp.ClientSession() as session:
        body = {"rollout_id": sys.argv[2]}
        async with session.post(sys.argv[1] + "/v1/agl/spans/search", json=body) as answer:
            print(sum([len(part) async for part in answer.content.iter_chunked(2**20)]))
asyncio.run(main())
"""
NUM_AGENTS, AGENT_SECONDS, NUM_REWARDS = 32, 0.05, 4
TRACES = ((20_000, 2_000), (50, 1_000_000))
"""Spans of a trace, and characters of each."""


@contextlib.asynccontextmanager
async def store_server() -> AsyncGenerator[tuple[str, agl.LightningStoreClient]]:
    """The address of a store server in a process of its own, and a client."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(own_command(Path(folder, "store.db")), Path(folder, "log")) as address,
    ):
        client = agl.LightningStoreClient(address)
        yield address.rstrip("/"), client
        await client.close()


async def rewards(rounds: int, count: int) -> None:
    """Print what rewards cost."""

    async def run(store: agl.LightningStore, num_rewards: int) -> float:
        @agl.rollout
        async def agent(task: int) -> float | None:
            await asyncio.sleep(AGENT_SECONDS)
            for _ in range(num_rewards):
                agl.emit_reward(1.0)
            return None if num_rewards else 1.0

        tasks = [EnqueueRolloutRequest(input=number) for number in range(count)]
        await store.enqueue_many_rollouts(tasks)
        runner = agl.LitAgentRunner(agl.OtelTracer(), concurrency=NUM_AGENTS, max_rollouts=count)
        begin = time.perf_counter()
        with runner.run_context(agent=agent, store=store):
            await runner.iter()
        return count / (time.perf_counter() - begin)

    async with store_server() as (_, store):
        kinds = {"no rewards": 0, f"{NUM_REWARDS} rewards": NUM_REWARDS}
        calls = {name: (lambda number=number: run(store, number)) for name, number in kinds.items()}
        await compare("rollouts/s over HTTP", calls, rounds)


async def refusals(rounds: int, count: int) -> None:
    """Print what late reports cost."""

    async def run(late: str | None) -> float:
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteLightningStore(Path(folder, "store.db"), durability="process")
            await store.enqueue_many_rollouts(
                [EnqueueRolloutRequest(input=number) for number in range(count)]
            )

            async def work(name: str) -> None:
                while claimed := await store.dequeue_many_rollouts(worker_id=name):
                    ids = (claimed[0].rollout_id, claimed[0].attempt.attempt_id)
                    of = {"rollout_id": ids[0], "attempt_id": ids[1]}
                    spans = [Span.from_attributes(attributes={"i": i}, **of) for i in range(4)]
                    await store.add_many_spans(spans)
                    await store.update_attempt(*ids, status="succeeded")
                    if late is not None:
                        with contextlib.suppress(AglError):
                            await store.update_attempt(*ids, status=late)

            begin = time.perf_counter()
            await asyncio.gather(*(work(f"w{number}") for number in range(NUM_AGENTS)))
            seconds = time.perf_counter() - begin
            await store.close()
        return count / seconds

    kinds = {"none late": None, "one accepted": "succeeded", "one refused": "failed"}
    calls = {name: (lambda late=late: run(late)) for name, late in kinds.items()}
    await compare("rollouts/s in process", calls, rounds)


async def compare(what: str, calls: dict[str, Callable[[], Awaitable[float]]], rounds: int) -> None:
    """Print the medians of calls that take turns, and their ratios to the first."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            found[name].append(await calls[name]())
    first = next(iter(found.values()))
    for name, values in found.items():
        ratio = statistics.median(a / b for a, b in zip(values, first, strict=True))
        print(f"{what}: {name:14} {statistics.median(values):7.0f}  ratio {ratio:.2f}")


async def check(session: aiohttp.ClientSession, url: str, waits: list[float]) -> None:
    """Note how long health checks take, one after the other."""
    while True:
        begin = time.perf_counter()
        async with session.get(url) as answer:
            await answer.read()
        waits.append(time.perf_counter() - begin)
        await asyncio.sleep(0.002)


async def read(rounds: int, scale: float) -> None:
    """Print how long health checks took beside a long read."""
    for num_spans, size in TRACES:
        async with store_server() as (address, store), aiohttp.ClientSession() as session:
            rollout = await store.start_rollout("task")
            of = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            text, at_once = {"gen_ai.prompt": "x" * size}, max(1, 4_000_000 // size)
            for _ in range(max(1, int(num_spans * scale) // at_once)):
                spans = [Span.from_attributes(attributes=text, **of) for _ in range(at_once)]
                await store.add_many_spans(spans)
            url = f"http://{urlsplit(address).netloc.rpartition('@')[2]}/health"
            waits: list[float] = []
            checking = asyncio.create_task(check(session, url, waits))
            await asyncio.sleep(0.5)
            quiet = max(waits)
            waits.clear()
            for _ in range(rounds):
                command = [sys.executable, "-c", READ, address, rollout.rollout_id]
                reader = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
                said, _ = await reader.communicate()
            checking.cancel()
            print(
                f"read {int(said) / 1e6:.0f} MB of {num_spans} spans: longest health check "
                f"{1000 * max(waits):.0f} ms, {1000 * quiet:.0f} ms without"
            )


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="rewards, read, refusals")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--scale", type=float, default=1.0, help="of the traces that are read")
    options = parser.parse_args()
    os.environ.setdefault("AGL_STRICT_PLUGINS", "1")
    kinds = options.kinds or ["rewards", "read", "refusals"]
    if "rewards" in kinds:
        asyncio.run(rewards(options.rounds, options.rollouts))
    if "read" in kinds:
        asyncio.run(read(options.rounds, options.scale))
    if "refusals" in kinds:
        asyncio.run(refusals(options.rounds, options.rollouts * 4))


if __name__ == "__main__":
    main()
