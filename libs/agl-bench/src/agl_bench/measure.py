"""One run of a workload with everything that is reported about it."""

import asyncio
from typing import Any

from agl_bench.load import LoadProgram, Tally
from agl_bench.server import ServerCost
from agl_bench.workloads import Workload

COLUMNS = {
    "workload": "workload",
    "way": "way",
    "tasks": "tasks",
    "checked": "checked",
    "runners": "runners",
    "rollouts_per_second": "rollouts/s",
    "share_of_ideal": "of ideal",
    "share_of_perfect": "of perfect",
    "spans_per_second": "spans/s",
    "server_cpu_ms_per_rollout": "server CPU ms",
    "load_cpu_ms_per_rollout": "load CPU ms",
    "start_p50_seconds": "start p50 s",
    "start_p99_seconds": "p99 s",
    "server_mb_before": "server MB",
    "server_mb_after": "after",
    "wrong": "wrong",
}
"""Key of a report -> head of its column."""


def measured(load: LoadProgram) -> tuple[dict[str, Any], list[str]]:
    """Run a load program; its report, and what was wrong with rollouts."""
    cost = ServerCost(load.url)
    cpu, memory = cost.cpu_seconds(), cost.memory_mb()
    tally = asyncio.run(load.run())
    report = report_of(load.workload, tally)
    if cost.local:
        used = cost.cpu_seconds() - cpu
        report["server_cpu_ms_per_rollout"] = used * 1000 / max(tally.finished, 1)
        report["server_mb_before"], report["server_mb_after"] = memory, cost.memory_mb()
    return report, tally.wrong


def report_of(workload: Workload, tally: Tally) -> dict[str, Any]:
    """The figures of a run that need no look at the server."""
    done, seconds = tally.finished, max(tally.seconds, 1e-9)
    starts = sorted(tally.starts) or [0.0]
    perfect = tally.perfect_seconds
    return {
        "workload": workload.name,
        "way": tally.way,
        "tasks": done,
        "checked": tally.checked,
        "runners": workload.runners,
        "seconds": seconds,
        "rollouts_per_second": done / seconds,
        "ideal_per_second": workload.ideal_rate,
        "share_of_ideal": done / seconds / workload.ideal_rate,
        "share_of_perfect": None if perfect is None else perfect / seconds,
        "spans_per_second": tally.spans / seconds,
        "start_p50_seconds": starts[len(starts) // 2],
        "start_p99_seconds": starts[min(len(starts) * 99 // 100, len(starts) - 1)],
        "load_cpu_ms_per_rollout": tally.load_cpu_seconds * 1000 / max(done, 1),
        "wrong": len(tally.wrong),
    }


def cells(report: dict[str, Any]) -> list[str]:
    """The report as cells of a table, in the order of ``COLUMNS``."""
    return [_cell(key, report.get(key)) for key in COLUMNS]


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.startswith("share"):
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return str(value)
