"""What the gateway adds to model calls, next to direct calls and, with --peer, to 0.3.0's LLMProxy.

With --tree NAME=FOLDER it is compared with another checkout.

A mock model server, the gateway with its store on an SQLite file, and this client have a process
each; direct and proxied calls take turns in rounds, and medians over the rounds are reported.

    python benchmarks/gateway.py --peer /path/to/venv/bin/python
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from checkouts import checkout, run_from
from gateway_parts import SOURCE, Child, connect, http_request, request_body, start_mock

from agl.cli.shared import print_table

CONCURRENCY = (1, 8, 32)
SETTLE_SECONDS = 6.0
"""For the records of a load to be packed and written, within 5 seconds, before its CPU is read."""

Row = dict[str, float]


class Target:
    """Where calls go: the mock itself, or a gateway before it."""

    def __init__(self, name: str, child: Child | None, port: int, paths: list[str]) -> None:
        self.name, self.child, self.port = name, child, port
        self.requests = {
            stream: [http_request(port, path, request_body(stream)) for path in paths]
            for stream in (False, True)
        }

    async def load(self, concurrency: int, seconds: float, stream: bool = False) -> Row:
        """Call for so long, so many at once."""
        connections = [await connect(self.port) for _ in range(concurrency)]
        requests = itertools.cycle(self.requests[stream])
        await asyncio.gather(*(one.call(next(requests)) for one in connections))
        waits: list[float] = []
        firsts: list[float] = []
        cpu = self.child.cpu_seconds() if self.child else 0.0
        begin = time.perf_counter()

        async def calls(connection: Any) -> None:
            while time.perf_counter() < begin + seconds:
                outcome = await connection.call(next(requests))
                if outcome.status != 200 or not outcome.is_whole:
                    raise SystemExit(f"{self.name}: {outcome.status} {outcome.body[:300]!r}")
                waits.append(outcome.seconds)
                firsts.append(outcome.first_seconds)

        await asyncio.gather(*map(calls, connections))
        wall = time.perf_counter() - begin
        for connection in connections:
            connection.transport.close()
        await asyncio.sleep(SETTLE_SECONDS)
        cpu = (self.child.cpu_seconds() if self.child else 0.0) - cpu
        return {
            "calls/s": len(waits) / wall,
            "p50 ms": 1000 * statistics.median(waits),
            "p99 ms": 1000 * sorted(waits)[int(0.99 * (len(waits) - 1))],
            "first ms": 1000 * statistics.median(firsts),
            "CPU ms": 1000 * cpu / len(waits),
        }


async def measure(targets: list[Target], rounds: int, seconds: float) -> dict[tuple[str, str], Row]:
    """Rounds of every load on every target in turn; medians by (load, target)."""
    loads = [(f"c={n}", n, False) for n in CONCURRENCY] + [("stream c=1", 1, True)]
    found: dict[tuple[str, str], list[Row]] = {}
    for number in range(rounds):
        for name, concurrency, stream in loads:
            for target in targets:
                print(f"round {number + 1}: {name} {target.name}", file=sys.stderr, flush=True)
                row = await target.load(concurrency, seconds, stream)
                found.setdefault((name, target.name), []).append(row)
    return {
        key: {column: statistics.median(row[column] for row in rows) for column in rows[0]}
        for key, rows in found.items()
    }


def report(rows: dict[tuple[str, str], Row], targets: list[Target]) -> None:
    """Print what was found."""
    table = []
    for (load, name), row in rows.items():
        direct = rows[load, "direct"]
        added = {
            "added p50": row["p50 ms"] - direct["p50 ms"],
            "added first": row["first ms"] - direct["first ms"],
        }
        cells = [f"{value:.3g}" for value in (row | (added if name != "direct" else {})).values()]
        table.append([load, name, *cells, *[""] * (7 - len(cells))])
    heads = [*next(iter(rows.values())), "added p50 ms", "added first ms"]
    print_table(["load", "", *heads], table)
    for target in targets:
        if target.child is not None:
            memory, ready = target.child.memory_mb(), target.child.ready_seconds
            print(f"{target.name}: ready after {ready:.2f} s, {memory:.0f} MB at the end")
    for other in (target.name for target in targets if target.name not in ("direct", "ours")):
        for load in dict.fromkeys(load for load, _ in rows):
            ours, peer = rows[load, "ours"], rows[load, other]
            print(
                f"{load}: {other} takes {peer['CPU ms'] / ours['CPU ms']:.2g} times our CPU per "
                f"call, and makes 1/{ours['calls/s'] / peer['calls/s']:.2g} of our calls/s"
            )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="the interpreter of an environment with agentlightning")
    parser.add_argument("--tree", action="append", type=checkout, default=[], help="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    options = parser.parse_args()
    os.environ |= {
        # 0.3 imports LiteLLM, which would look for news in the network first, and wants a key.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with tempfile.TemporaryDirectory(prefix="agl-bench-") as name:
        folder = Path(name)
        mock, port = start_mock(folder)
        targets = [Target("direct", None, port, ["/v1"])]
        ends = (str(port), str(folder))
        ours = [sys.executable, str(SOURCE / "gateway_ours.py"), *ends]
        programs = {"ours": ours}
        if options.peer:
            programs["0.3.0"] = [options.peer, str(SOURCE / "gateway_peer.py"), *ends]
        for name, tree in options.tree:
            (folder / name).mkdir()
            programs[name] = run_from(tree, [*ours[:3], str(folder / name)])
        try:
            for program, command in programs.items():
                log = folder / f"{program}.log"
                child = Child(command, log)
                try:
                    told = child.ready()
                except SystemExit:
                    print(log.read_text()[-3000:], file=sys.stderr)
                    raise
                targets.append(Target(program, child, told["port"], told["paths"]))
            rows = uvloop.run(measure(targets, options.rounds, options.seconds))
            print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end")
            report(rows, targets)
        finally:
            for target in targets[1:]:
                if target.child is not None:
                    target.child.stop()
            mock.stop()


if __name__ == "__main__":
    main()
