"""What it costs that a run survives: records and checkpoints, and how soon it goes on.

The quickstart is killed with SIGKILL after some steps, and started again with the same command,
some times: seconds until it asks for rollouts, and until the first new one has begun. Then it is
run with what it writes for a next start timed, as shares of the run's own time: the records of
steps, checkpoints, and what says which run and which start of it this is.

    python benchmarks/resume_cost.py --steps 20 --kills 3
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agl
from agl_learning.reports.json_lines import read_json_lines
from agl_learning.reports.run_metrics import RunMetrics

QUICKSTART = Path(__file__).parents[1] / "examples/quickstart"


def timed(seconds: Counter[str], name: str, owner: Any, attribute: str) -> None:
    """Add up how long a function takes, a coroutine function with all that it waits for."""
    function: Callable[..., Any] = getattr(owner, attribute)

    def call(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[name] += time.perf_counter() - begun

    async def wait(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return await function(*args, **options)
        finally:
            seconds[name] += time.perf_counter() - begun

    setattr(owner, attribute, wait if asyncio.iscoroutinefunction(function) else call)


def measure_shares(out: Path, steps: int, deterministic: bool) -> None:
    """Run it in this process, and print what share of its time each part took."""
    sys.path.insert(0, str(QUICKSTART))
    import quickstart

    from agl_learning.run import folder
    from agl_learning.run.records import Records
    from agl_runs import recording

    seconds = Counter[str]()
    # Before the loop is imported, whose modules take these by name.
    timed(seconds, "start", folder, "write_generation")
    timed(seconds, "start", folder, "mark_lost")
    from agl_learning.trainer.loop import Loop

    timed(seconds, "checkpoints", Loop, "_save")
    timed(seconds, "records of steps", Records, "put")  # which ``done`` calls, too
    timed(seconds, "digests of weights", agl.GRPO, "fingerprint")
    timed(seconds, "record of the run", recording, "_begin")
    quickstart.train(0, steps, out, 2, deterministic)
    total = json.loads((out / "summary.json").read_text())["seconds"]
    for name, each in [*seconds.most_common(), ("all of them", seconds.total())]:
        print(f"{name:20} {each:7.3f} s {each / total:7.2%} of {total:.1f} s")


def measure_starts(out: Path, steps: int, kills: int) -> None:
    """Kill it after some steps, and say how soon it goes on, some times."""
    start_and_kill(out, lambda: len(trained_steps(out)) >= steps)
    for start in range(2, kills + 2):
        # One of them it may train with rollouts that were all there.
        begun, enough = time.time(), len(trained_steps(out)) + 2
        start_and_kill(out, lambda enough=enough: len(trained_steps(out)) >= enough)
        asked, first = asyncio.run(first_rollout(out, start))
        print(f"asks for rollouts after {asked - begun:.2f} s, the first begins after ", end="")
        print("none yet" if first is None else f"{first - begun:.2f} s", flush=True)


def start_and_kill(out: Path, is_time: Callable[[], bool]) -> None:
    """Start it, and kill it a second after it is time."""
    command = [sys.executable, str(QUICKSTART / "quickstart.py"), "--out", str(out)]
    with out.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    while not is_time():
        if process.poll() is not None:
            sys.exit(f"it has ended with code {process.returncode}; see {out.with_suffix('.log')}")
        time.sleep(0.02)
    time.sleep(1.0)
    process.kill()
    process.wait()
    time.sleep(2.0)  # in which its runners end


def trained_steps(out: Path) -> list[int]:
    """Those that stand in the metrics."""
    lines = [line for _, line in read_json_lines(out / RunMetrics.FILE).objects]
    return [line["step"] for line in lines if "calls/trained" in line]


async def first_rollout(out: Path, start: int) -> tuple[float, float | None]:
    """When a start asked for its first rollout, and when the first attempt at one began."""
    store = agl.SqliteLightningStore(out / "store.db")
    try:
        rollouts = [
            one
            for one in await store.query_rollouts()
            if (one.metadata or {})["generation"] == start
        ]
        attempts = [each for one in rollouts for each in await store.query_attempts(one.rollout_id)]
        asked = min(one.start_time for one in rollouts)
        return asked, min((each.start_time for each in attempts), default=None)
    finally:
        await store.close()


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description="what it costs that a run survives")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--deterministic", action="store_true")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="agl-resume-cost-"))
    for name in ("measured", "killed"):
        (home / name).mkdir()
    measure_starts(home / "killed", given.steps, given.kills)
    measure_shares(home / "measured", given.steps, given.deterministic)


if __name__ == "__main__":
    main()
