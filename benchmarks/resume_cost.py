"""What it costs that a run survives: journal and checkpoints, and how soon it goes on.

The quickstart is run with what it writes for a next start timed, as shares of the run's own time:
the journal, checkpoints, the records of run and generation. Then it is killed with SIGKILL after
some steps, and started again with the same command, some times: seconds until it asks for rollouts,
and until the first new one has begun.

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

    from agl_learning.run.journal import Journal
    from agl_learning.trainer import online
    from agl_runs import recording

    seconds = Counter[str]()
    timed(seconds, "journal", Journal, "append")
    timed(seconds, "checkpoints", online.OnlineTraining, "_save")
    timed(seconds, "digests of weights", agl.GRPO, "fingerprint")
    timed(seconds, "generation", online, "begin_generation")
    timed(seconds, "generation", online, "keep_branch")
    timed(seconds, "record of the run", recording, "_begin")
    quickstart.train(0, steps, out, 2, deterministic)
    total = json.loads((out / "summary.json").read_text())["seconds"]
    for name, each in [*seconds.most_common(), ("all of them", seconds.total())]:
        print(f"{name:20} {each:7.3f} s {each / total:7.2%} of {total:.1f} s")


def measure_starts(out: Path, steps: int, kills: int) -> None:
    """Kill it after some steps, and say how soon it goes on, some times."""
    start_and_kill(out, lambda: count(out, "trained") >= steps)
    for _ in range(kills):
        entries, begun = count(out, "collecting"), time.time()
        asked = start_and_kill(out, lambda before=entries: count(out, "collecting") > before)
        first = asyncio.run(first_attempt(out))
        print(f"asks for rollouts after {asked - begun:.2f} s, the first begins after ", end="")
        print("none yet" if first is None else f"{first - begun:.2f} s", flush=True)


def start_and_kill(out: Path, is_time: Callable[[], bool]) -> float:
    """Start it, and kill it a second after it is time; when that was."""
    command = [sys.executable, str(QUICKSTART / "quickstart.py"), "--out", str(out)]
    with out.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    while not is_time():
        if process.poll() is not None:
            sys.exit(f"it has ended with code {process.returncode}; see {out.with_suffix('.log')}")
        time.sleep(0.02)
    now = time.time()
    time.sleep(1.0)
    process.kill()
    process.wait()
    time.sleep(2.0)  # in which its runners end
    return now


def count(out: Path, event: str) -> int:
    """How often it stands in the journal."""
    journal = out / "journal.jsonl"
    return journal.read_text().count(f'"event": "{event}"') if journal.exists() else 0


async def first_attempt(out: Path) -> float | None:
    """When the first attempt of the newest start began."""
    store = agl.SqliteLightningStore(out / "store.db")
    try:
        rollouts = await store.query_rollouts()
        starts = [(one.metadata or {}).get("generation", 0) for one in rollouts]
        newest = [one for one, start in zip(rollouts, starts, strict=True) if start == max(starts)]
        attempts = [each for one in newest for each in await store.query_attempts(one.rollout_id)]
        return min((each.start_time for each in attempts), default=None)
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
