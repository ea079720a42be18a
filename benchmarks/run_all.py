"""Every benchmark once, as short as it goes: does each run, with ``--peer`` and ``--tree`` too?

    python benchmarks/run_all.py --peer /path/to/venv/bin/python [NAME ...]

What a short run finds means nothing. ``resume.py`` is left out: ``nox -s resume`` runs it whole.
``--peer`` is the interpreter of an environment with ``agentlightning[apo]==0.3.0``.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agl.cli.shared import print_table

HERE = Path(__file__).resolve().parent
LONGEST_SECONDS = 900
TRACEBACK = "Traceback (most recent call last)"
ENDS_WITH_1 = ("async_collection.py", "distillation.py")
"""Benchmarks that end so when a figure is not reached, as it is not in a short run."""
COMMANDS = """
against_trl.py gradients mean "KL, c" GSPO SFT
against_trl.py speed --rounds 1 --steps 1
against_trl.py curves --seeds 0 --steps 1 --held-out 4
algorithms.py --algorithm grpo --seeds 1 --steps 2
apo.py --seeds 1 --tries 1 --peer {peer} --peer-tries 1 --peer-rounds 1
async_collection.py --seeds 1 --steps 2
compat_imports.py --samples 1
crash.py --kills 4
credit_toy.py --seeds 1
deterministic.py --requests 16
distillation.py --seeds 1 --steps 2 --only grpo
gateway.py --rounds 1 --seconds 0.5 {beside}
gateway_faults.py --calls 300
gateway_memory.py --calls 2000
isolation.py --attempts 4 --rounds 1
judge.py --seeds 1 --steps 2
large_store.py {store} --runs 1
memory.py
neighbours.py --rounds 1 --rollouts 64 --scale 0.05
otlp.py --rounds 1
ray_runners.py --runners 4 --rollouts 50 --rounds 1
real_model.py --steps 1 --option groups_per_step=2 --option group_size=2
resume_cost.py --steps 2 --kills 1
rows.py --rollouts 20
same_answers.py {tree} {tree} --part openapi
scale_out.py rates --rounds 1 --seconds 1
scale_out.py starts --samples 5
scale_out.py full --rollouts 1000 --rounds 1 --seconds 1
scale_out.py idle --runners 90 --busy 9 --work 2 --beat 2 --seconds 2
server.py --rounds 1 --agents 4 --size tiny --tree same={tree}
service.py --rounds 1 --steps 4
startup.py --samples 1 --starts 1
store_cycle.py --rounds 1 --seconds 1 --tree same={tree} --peer {peer_agl}
store_growth.py --spans 1000
store_in_process.py --rollouts 200 --rounds 1
store_parts.py --count 100
store_workloads.py --seconds 1 --tasks 20 {beside} --workload in-flight --workload long-queue
tracers.py --calls 20 --rounds 1 dummy otel
trackers.py --rounds 2 --steps 2 --rollouts 5
ui.py trace --spans 2000 --rounds 1
ui.py memory --changes 20
ui.py cost --seconds 3 --rounds 1
"""


def main() -> int:
    """Run them one after the other, and print which failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="only these, by the beginning of the file's name")
    parser.add_argument("--peer", required=True)
    options = parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory(prefix="agl-bench-") as folder:
        store = Path(folder, "store.db")
        size = ["--rollouts", "40000", "--long-trace", "2000"]
        subprocess.run([sys.executable, HERE / "filling", store, *size], check=True)
        peer = Path(options.peer)
        words = {"peer": peer, "peer_agl": peer.with_name("agl"), "store": store}
        words["beside"] = f"--tree same={HERE.parent} --peer {peer}"
        for line in COMMANDS.strip().splitlines():
            if not line.startswith(tuple(options.names)) and options.names:
                continue
            print(line, file=sys.stderr, flush=True)
            command = shlex.split(line.format(tree=HERE.parent, **words))
            began = time.perf_counter()
            try:
                done = subprocess.run(
                    [sys.executable, HERE / command[0], *command[1:]],
                    cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    errors="replace", timeout=LONGEST_SECONDS, check=False,
                )  # fmt: skip
                output = done.stdout
                broke = done.returncode and not (
                    done.returncode == 1 and command[0] in ENDS_WITH_1 and TRACEBACK not in output
                )
                how = f"exit {done.returncode}" if broke else ""
            except subprocess.TimeoutExpired as error:
                how, output = f"not done after {LONGEST_SECONDS} s", str(error.output or "")
            if how:
                failed = True
                print("\n".join(output.splitlines()[-30:]), file=sys.stderr)
            rows.append([command[0], f"{time.perf_counter() - began:.0f}", how or "ok"])
    print_table(["benchmark", "seconds", "how"], rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
