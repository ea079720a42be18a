"""The workloads that 0.3 published, on our server and, beside it, on another of the same wire.

Each run has a server process of its own and the same load program (``agl bench store``); the
servers take turns. Ours runs on an SQLite file and is spoken to in the fastest way that it knows;
0.3's runs in memory and is spoken to by OTLP, the fastest of its own (``--peer-way wire`` is what
its client does for spans that are no OpenTelemetry's). Runs are cut short after ``--seconds``.
``--tree`` has servers of other checkouts take part, under the same load program; last are medians
of what ours needs for each one's 1, over the rounds in which neither was cut short.

    python benchmarks/store_workloads.py --peer /path/to/venv/bin/python
    python benchmarks/store_workloads.py --tree old=/path/to/old/checkout --rounds 5
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkouts import checkout, run_from

from agl.cli.shared import print_table
from agl_bench.load import LoadProgram
from agl_bench.measure import COLUMNS, cells, measured
from agl_bench.server import own_command, served
from agl_bench.workloads import WORKLOADS


def main() -> int:
    """Measure, and print a table; 1 when a rollout was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="the interpreter of an environment with agentlightning")
    parser.add_argument("--tree", action="append", type=checkout, default=[], metavar="NAME=FOLDER")
    parser.add_argument("--peer-way", choices=["wire", "otlp"], default="otlp")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--tasks", type=int, help="of each run; None for less than published")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest that one run takes")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    # 0.3 imports LiteLLM, which would look for news in the network first.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    trees: dict[str, Path] = dict(options.tree)
    servers = ["ours", *trees] + (["0.3.0"] if options.peer else [])
    reports: list[dict[str, Any]] = []
    for name in options.workload or WORKLOADS:
        for number in range(options.rounds):
            # There and back: who comes first is not always the same.
            for server in servers[:: -1 if number % 2 else 1]:
                print(f"{name}: {server}, round {number + 1}", file=sys.stderr, flush=True)
                way = options.peer_way if server == "0.3.0" else None
                with tempfile.TemporaryDirectory(prefix="agl-bench-") as folder:
                    command = own_command(Path(folder, "store.db"))
                    if server in trees:
                        command = run_from(trees[server], command)
                    elif server != "ours":
                        command = peer_command(options.peer)
                    with served(command, Path(folder, "server.log")) as url:
                        about = {"way": way, "seed": number, "max_seconds": options.seconds}
                        load = LoadProgram(WORKLOADS[name], url, options.tasks, **about)
                        report, wrong = measured(load)
                for problem in wrong[:3]:
                    print(f"  {problem}", file=sys.stderr)
                reports.append({"server": server, **report})
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end")
    print_table(["server", *COLUMNS.values()], [[r["server"], *cells(r)] for r in reports])
    if trees or options.peer:
        compare(reports, servers)
    return 1 if any(r["wrong"] for r in reports if r["server"] == "ours") else 0


def compare(reports: list[dict[str, Any]], servers: list[str]) -> None:
    """Print medians of ratios of rounds: ours to each other server's."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(r["workload"] for r in reports):
        ours, *others = (
            [r for r in reports if (r["workload"], r["server"]) == (name, server)]
            for server in servers
        )
        for theirs in others:
            # A run that was cut short has read less than it has written.
            pairs = [
                (one, other)
                for one, other in zip(ours, theirs, strict=True)
                if one["share_of_perfect"] is not None and other["share_of_perfect"] is not None
            ]
            if not pairs:
                rows.append([name, theirs[0]["server"], "cut short", "cut short"])
                continue
            cells = [name, theirs[0]["server"]]
            for key in ("server_cpu_ms_per_rollout", "rollouts_per_second"):
                ratios = [one[key] / other[key] for one, other in pairs]
                middle = statistics.median(ratios)
                cells.append(f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
            rows.append(cells)
    print_table(["workload", "ours to", "server CPU", "rollouts/s"], rows)


def peer_command(python: str) -> list[str]:
    """How 0.3's server is started."""
    command = Path(python).with_name("agl")
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version as v; print(v('agentlightning'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    if version != "0.3.0":
        raise SystemExit(f"{python} has agentlightning {version}; expected 0.3.0")
    return [str(command), "store", "--backend", "memory", "--log-level", "WARNING"]


if __name__ == "__main__":
    sys.exit(main())
