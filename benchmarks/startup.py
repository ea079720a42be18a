"""How long the first rollout takes, and how soon a queued one starts.

Each sample is a fresh process that trains a trivial agent on one task. A first process of each
kind writes down which modules it imported, in all its processes; the others import those first, so
that the time without imports is from there to the moment at which the algorithm has the finished
rollout.

The last line: an idle ``agl store``, one client that waits for work, another that queues a rollout
now and then; the time from the request that queues it until the first has it.

    python benchmarks/startup.py --samples 5
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import agl
from agl.cli.shared import print_table
from agl_bench.server import own_command, served

SCRIPT = """
import importlib, json, os, sys, time
from pathlib import Path

BEGIN = time.perf_counter()
HERE = Path(__file__).parent
known = HERE / f"modules-{sys.argv[1]}.json"
if known.exists():
    for name in json.loads(known.read_text()):
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # parts of a package that cannot be imported by themselves
IMPORTED = time.perf_counter()

import agl


def note_modules():
    if not known.exists():
        Path(HERE, f"modules-of-{os.getpid()}.json").write_text(json.dumps(list(sys.modules)))


@agl.rollout
def agent(task: int) -> float:
    note_modules()
    return 1.0


@agl.algo
async def algorithm(store):
    rollout = await store.enqueue_rollout(1)
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    now = time.perf_counter()
    assert ended.status == "succeeded", ended
    note_modules()
    print("TIMES", now - BEGIN, now - IMPORTED, flush=True)


strategy = {"type": "cs", "server_port": 0} if sys.argv[1] == "cs" else "shm"
store = agl.SqliteLightningStore(HERE / f"store-{os.getpid()}.db")
agl.Trainer(algorithm=algorithm, strategy=strategy, store=store, n_runners=1).fit(agent)
"""


def first_rollout(kind: str, folder: Path) -> tuple[float, float]:
    """Seconds to the first finished rollout, with and without imports."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, kind], capture_output=True, text=True, timeout=60, check=False
    )
    times = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("TIMES")]
    if done.returncode != 0 or len(times) != 1:
        raise SystemExit(f"{kind}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return float(times[0][0]), float(times[0][1])


def collect_modules(kind: str, folder: Path) -> None:
    """Unite what the processes of the first sample imported, in the order of their imports."""
    names: dict[str, None] = {}
    for file in sorted(folder.glob("modules-of-*.json")):
        names |= dict.fromkeys(json.loads(file.read_text()))
        file.unlink()
    names.pop("__main__", None)
    (folder / f"modules-{kind}.json").write_text(json.dumps(list(names)))


async def idle_starts(url: str, samples: int, other: str = "") -> list[float]:
    """Milliseconds from queueing at one server to having it at the other, one at a time."""
    runner, algorithm = agl.LightningStoreClient(other or url), agl.LightningStoreClient(url)
    times: list[float] = []
    for number in range(samples + 5):
        waiting = asyncio.ensure_future(runner.dequeue_rollout("idle", wait_seconds=30.0))
        await asyncio.sleep(0.05)  # the system is idle again, and the request is held
        begin = time.perf_counter()
        queued = await algorithm.enqueue_rollout(number)
        claimed = await waiting
        times.append((time.perf_counter() - begin) * 1000)
        assert claimed is not None
        assert claimed.rollout_id == queued.rollout_id
        attempt_id = claimed.attempt.attempt_id
        await runner.update_attempt(claimed.rollout_id, attempt_id, status="succeeded")
    await runner.close()
    await algorithm.close()
    return times[5:]  # without those that opened connections


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=5, help="processes of each kind")
    parser.add_argument("--starts", type=int, default=100, help="rollouts for the last line")
    options = parser.parse_args()
    rows: list[list[str]] = []
    for kind, what in (("cs", "client-server, three processes"), ("shm", "in process")):
        with tempfile.TemporaryDirectory(prefix="agl-startup-") as folder:
            cold, _ = first_rollout(kind, Path(folder))
            collect_modules(kind, Path(folder))
            warm = [first_rollout(kind, Path(folder))[1] for _ in range(options.samples)]
        rows.append(
            [
                what,
                f"{statistics.median(warm):.2f}",
                f"{min(warm):.2f}-{max(warm):.2f}",
                f"{cold:.2f}",
            ]
        )
    head = ["from import agl to the first finished rollout, s", "median", "range", "with imports"]
    print_table(head, rows)
    with tempfile.TemporaryDirectory(prefix="agl-startup-") as folder:
        command = own_command(Path(folder, "store.db"))
        with served(command, Path(folder, "server.log")) as url:
            times = sorted(asyncio.run(idle_starts(url, options.starts)))
    p99 = times[min(len(times) * 99 // 100, len(times) - 1)]
    print(f"queued to started, idle: p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
