"""Calls that go wrong in every way, many at once: each leaves exactly one record, as it was.

Clients hang up in the middle of streams, and backends die in the middle of answers; the gateway's
memory is looked at on the way. Exit code 1 when a record is missing, doubled or wrong.

    python benchmarks/gateway_faults.py --calls 10000 --concurrency 64
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import uvloop
from gateway_parts import SOURCE, Child, Outcome, connect, http_request, request_body, start_mock

from agl.semconv import ModelCallAttributes as Key
from agl_sqlite import SqliteLightningStore

KINDS = {"whole": 50, "stream": 20, "cut": 10, "die": 10, "die stream": 10}
"""Kind of call -> its share in percent."""
ERRORS = {
    "cut": "client closed the connection",
    "die": "broke off its answer",
    "die stream": "broke off the stream",
}
NUMBER = re.compile(r"number-(\d+)\]")


def kinds(count: int, seed: int) -> list[str]:
    """What each call shall be."""
    found = [kind for kind, share in KINDS.items() for _ in range(count * share // 100)]
    random.Random(seed).shuffle(found)
    return found


async def make(port: int, path: str, number: int, kind: str) -> Outcome:
    """One call, on a connection of its own."""
    note = {"cut": "pace-50", "die": "die", "die stream": "die"}.get(kind, "")
    body = request_body(kind not in ("whole", "die"), f"{note}] [number-{number}")
    connection = await connect(port)
    try:
        return await connection.call(
            http_request(port, path, body), cut_after=700 if kind == "cut" else None
        )
    finally:
        connection.transport.close()


async def load(
    port: int, paths: list[str], planned: list[str], concurrency: int, child: Child
) -> list[str]:
    """Make every call; what agents saw that they should not have."""
    gate, wrong, memory = asyncio.Semaphore(concurrency), list[str](), list[float]()

    async def one(number: int, kind: str) -> None:
        async with gate:
            outcome = await make(port, paths[number % len(paths)], number, kind)
        expected = {"whole": (200, True), "stream": (200, True), "die": (502, True)}.get(kind)
        if expected and (outcome.status, outcome.is_whole) != expected:
            wrong.append(f"call {number} ({kind}): got {outcome.status}, {outcome.body[:200]!r}")
        if kind == "die stream" and b'"error"' not in outcome.body:
            wrong.append(f"call {number} ({kind}): its agent was not told")
        if number % (len(planned) // 10 or 1) == 0:
            memory.append(child.memory_mb())

    await asyncio.gather(*(one(number, kind) for number, kind in enumerate(planned)))
    print("memory on the way, MB:", *(f"{value:.0f}" for value in memory))
    return wrong


async def check(path: Path, rollout_ids: list[str], planned: list[str]) -> list[str]:
    """What is wrong with the records."""
    found: dict[int, list[str]] = defaultdict(list)
    store = SqliteLightningStore(path)
    for rollout_id in rollout_ids:
        for span in await store.query_spans(rollout_id):
            number = NUMBER.search(str(span.attributes[Key.INPUT_MESSAGES]))
            assert number is not None
            error = str(span.attributes.get(Key.ERROR, ""))
            found[int(number[1])].append(error)
            if (span.status.status_code == "ERROR") != bool(error):
                found[int(number[1])].append("status and error differ")
    await store.close()
    wrong: list[str] = []
    for number, kind in enumerate(planned):
        errors, expected = found.pop(number, []), ERRORS.get(kind, "")
        if len(errors) != 1 or expected not in errors[0] or bool(errors[0]) != bool(expected):
            wrong.append(f"call {number} ({kind}): records {errors}, expected [{expected!r}]")
    return [*wrong, *(f"call {number} was never made" for number in found)]


def main() -> int:
    """Make the calls, and compare what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    planned = kinds(options.calls, options.seed)
    with tempfile.TemporaryDirectory(prefix="agl-bench-") as name:
        folder = Path(name)
        mock, backend_port = start_mock(folder)
        command = [sys.executable, str(SOURCE / "gateway_ours.py"), str(backend_port), name]
        child = Child(command, folder / "gateway.log")
        try:
            told = child.ready()
            begin = time.perf_counter()
            wrong = uvloop.run(
                load(told["port"], told["paths"], planned, options.concurrency, child)
            )
            seconds = time.perf_counter() - begin
        finally:
            child.stop()
            mock.stop()
        rollout_ids = [path.split("/")[2] for path in told["paths"]]
        wrong += asyncio.run(check(folder / "store.db", rollout_ids, planned))
    print(f"{len(planned)} calls in {seconds:.1f} s: {dict(Counter(planned))}; {len(wrong)} wrong")
    for problem in wrong[:20]:
        print(f"  {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
