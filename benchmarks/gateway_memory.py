"""Whether the gateway's memory stays as it is, however many calls it records.

A mock model server, a store that keeps no spans, ``agl gateway`` and this client have a process
each. Attempts follow each other; each makes its calls, some of them as streams, and is ended as a
runner does it. A line per 50,000 calls; fails when the memory at the end is more than 10 MB above
that at 100,000 calls, or above 150 MB.

    python benchmarks/gateway_memory.py --calls 1000000 --attempts 1000
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from gateway_parts import SOURCE, connect, http_request, request_body, start_mock

from agl.store.base import Turn
from agl.store.memory import InMemoryLightningStore
from agl_server.client import LightningStoreClient
from agl_server.server import LightningStoreServer

CONNECTIONS = 16
EVERY = 50_000
FIRST = 100_000
"""So many calls are warming up."""
STREAMED = 10
"""One call of so many is a stream."""
GROWTH_MB = 10
LIMIT_MB = 150


class SpanCounter(InMemoryLightningStore):
    """Keeps rollouts and attempts, and of spans their number."""

    num_spans = 0

    async def turn(self, spans: Any = (), **options: Any) -> Turn:
        """Count."""
        self.num_spans += len(spans)
        return await super().turn((), **options)


async def serve_store() -> None:
    """Serve one until standard input ends; then print how many spans there were."""
    store = SpanCounter()
    server = LightningStoreServer(store, host="127.0.0.1", port=0)
    await server.start()
    print(json.dumps({"url": server.endpoint}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    print(store.num_spans, flush=True)


class Gateway:
    """``agl gateway`` in a process of its own."""

    def __init__(self, backend_port: int, store_url: str) -> None:
        model = f"mock=http://127.0.0.1:{backend_port}/v1"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from agl.cli import main; main()", "gateway"),
                *("--open", "--port", "0", "--model", model, "--store", store_url),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"agl gateway: http://127.0.0.1:(\d+)/v1 serves", line):
                self.port = int(found[1])
                return
        raise SystemExit("the gateway did not start")

    def memory_mb(self) -> float:
        """Resident now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    def stop(self) -> None:
        """End it in good order."""
        self.process.terminate()
        self.process.wait(30)


async def attempt(gateway: Gateway, store: LightningStoreClient, calls: int) -> None:
    """One attempt from its start to its end."""
    rollout = await store.start_rollout(input="task")
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    path = "/rollout/{}/attempt/{}".format(*ids)
    requests = [
        http_request(gateway.port, f"{path}/v1", request_body(stream)) for stream in (False, True)
    ]
    numbers: Iterator[int] = iter(range(calls))

    async def one_after_the_other() -> None:
        connection = await connect(gateway.port)
        for number in numbers:
            outcome = await connection.call(requests[number % STREAMED == 0])
            if outcome.status != 200 or not outcome.is_whole:
                raise SystemExit(f"{outcome.status} {outcome.body[:300]!r}")
        connection.transport.close()

    await asyncio.gather(*(one_after_the_other() for _ in range(CONNECTIONS)))
    connection = await connect(gateway.port)
    head = f"POST {path}/end HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    assert (await connection.call(head.encode())).status == 200
    connection.transport.close()
    await store.update_attempt(*ids, status="succeeded")


async def measure(gateway: Gateway, store_url: str, calls: int, attempts: int) -> list[float]:
    """Make the calls, and tell the memory after each ``EVERY`` of them."""
    store = LightningStoreClient(store_url)
    begin = time.perf_counter()
    found: list[float] = []
    each = calls // attempts
    for number in range(attempts):
        await attempt(gateway, store, each)
        done = (number + 1) * each
        if done // EVERY > (done - each) // EVERY:
            found.append(gateway.memory_mb())
            seconds = time.perf_counter() - begin
            print(f"{done} calls, {seconds:.0f} s, {found[-1]:.1f} MB", flush=True)
    await store.close()
    return found


def main() -> None:
    """Measure, and say whether it is flat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--attempts", type=int, default=1_000)
    parser.add_argument("--serve-store", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_store:
        uvloop.run(serve_store())
        return
    with tempfile.TemporaryDirectory(prefix="agl-bench-") as name:
        mock, port = start_mock(Path(name))
        store = subprocess.Popen(
            [sys.executable, str(SOURCE / "gateway_memory.py"), "--serve-store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert store.stdout is not None
        url = json.loads(store.stdout.readline())["url"]
        gateway = Gateway(port, url)
        try:
            print(f"0 calls, {gateway.memory_mb():.1f} MB", flush=True)
            found = uvloop.run(measure(gateway, url, options.calls, options.attempts))
        finally:
            gateway.stop()
            mock.stop()
            recorded = store.communicate(timeout=30)[0].strip()
    made = options.calls // options.attempts * options.attempts
    print(f"{made} calls made, {recorded} recorded; {os.cpu_count()} cores")
    if int(recorded) != made:
        raise SystemExit(f"{made} calls were made, and {recorded} recorded")
    if len(found) > FIRST // EVERY:
        growth = found[-1] - found[FIRST // EVERY - 1]
        print(f"{growth:+.1f} MB since {FIRST} calls")
        if growth > GROWTH_MB or found[-1] > LIMIT_MB:
            raise SystemExit(
                f"expected at most {GROWTH_MB} MB more than at {FIRST} calls, and {LIMIT_MB} MB "
                f"in all; there are {growth:.1f} more, and {found[-1]:.1f}"
            )


if __name__ == "__main__":
    main()
