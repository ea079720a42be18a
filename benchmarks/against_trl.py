"""agl-torch and agl-unsloth beside TRL, on one pretrained model: gradients, speed, curves.

    python benchmarks/against_trl.py gradients [NAME ...]
    python benchmarks/against_trl.py speed [--rounds 2] [--steps 4] [--setting "16 rows"]
    python benchmarks/against_trl.py curves --out FOLDER [--seeds 0 1 2] [--steps 12]

The model is SmolLM2-135M-Instruct, see ``agl model get``; TRL stands in the same environment.

gradients  the gradient of one batch for each option that both have, see ``trl_gradients.py``; exit
           status 1 where one is farther from TRL's than it should be
speed      seconds a step, tokens a second and the largest memory of both by turns, each in a
           process of its own, see ``trl_runs.py``
curves     what both learn, over seeds; each training is a file in ``--out``, and not made again
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agl.cli.shared import print_table

PACKAGES = ("trl", "transformers", "torch", "accelerate")


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["gradients", "speed", "curves", "run"])
    parser.add_argument("names", nargs="*", help="gradients: options whose names begin so")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    parser.add_argument("--setting", default="16 rows", help="how TRL cuts a step into batches")
    parser.add_argument("--held-out", type=int, default=0, help="sums that are asked afterwards")
    parser.add_argument("--graded", action="store_true", help="speed: so that all rows are trained")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "run":
        from trl_runs import run

        rest = (given.learning_rate, given.setting, given.held_out, given.graded)
        print(json.dumps(run(given.names[0], given.steps, given.seeds[0], *rest)))
        return 0
    about = {"versions": {name: version(name) for name in PACKAGES}, "load": os.getloadavg()[0]}
    rows, is_good = {"gradients": gradients, "speed": speed, "curves": curves}[given.what](given)
    if given.json:
        print(json.dumps({**about, "rows": rows}, indent=2))
    elif rows:
        print_table(list(rows[0]), [[shown(value) for value in row.values()] for row in rows])
        print(about)
    return int(not is_good)


def shown(value: Any) -> str:
    """With three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def gradients(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """One row per option, and whether all are as near as they should be."""
    from trl_gradients import BOUND, measure

    rows: list[dict[str, Any]] = []
    for row in measure(given.names):
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows, all(row["why"] or row["difference"] <= BOUND for row in rows)


def train(side: str, given: argparse.Namespace, seed: int, *more: str) -> dict[str, Any]:
    """One training in a process of its own."""
    command = [sys.executable, __file__, "run", side, "--seeds", str(seed)]
    command += ["--steps", str(given.steps), "--learning-rate", str(given.learning_rate)]
    done = subprocess.run(
        [*command, "--setting", given.setting, *more], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def speed(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """One row per run, by turns; the first step of each warms up and does not count."""
    rows: list[dict[str, Any]] = []
    for _ in range(given.rounds):
        for side in ("agl", "trl"):
            found = train(side, given, given.seeds[0], *["--graded"] * given.graded)
            steps = found["steps"][1:] or found["steps"]
            sums = {name: sum(step[name] for step in steps) for name in steps[0]}
            rows.append(
                {
                    "side": side,
                    "seconds a step": statistics.median(step["seconds"] for step in steps),
                    "CPU seconds": found["cpu"],
                    "sampling": sums["sampling"] / len(steps),
                    "update": sums["update"] / len(steps),
                    "sampled tokens/s": sums["sampled"] / sums["sampling"],
                    "trained tokens/s": sums["tokens"] / sums["update"],
                    "trained rows": sums["rows"] / len(steps),
                    "memory GiB": found["memory"],
                    "load": os.getloadavg()[0],
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return rows, True


def curves(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """One row per side and seed."""
    from trl_runs import held_out, smollm2

    folder, sums = given.out or Path("against-trl"), given.held_out or 128
    folder.mkdir(parents=True, exist_ok=True)
    before = folder / "before.json"
    if not before.exists():
        before.write_text(json.dumps(held_out(str(smollm2()), sums)))
    rows: list[dict[str, Any]] = []
    for seed in given.seeds:
        for side in ("agl", "trl"):
            file = folder / f"{side}-{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(train(side, given, seed, "--held-out", str(sums))))
            found = json.loads(file.read_text())
            rows.append(
                {
                    "side": side,
                    "seed": seed,
                    "before": json.loads(before.read_text()),
                    "after": found["held_out"],
                    "in training": " ".join(f"{step['reward']:.2f}" for step in found["steps"]),
                }
            )
    for side in ("agl", "trl"):
        after = [row["after"] for row in rows if row["side"] == side]
        spread = f"{min(after):.3f} to {max(after):.3f}"
        print(f"{side}: {statistics.mean(after):.3f} after ({spread})", file=sys.stderr)
    return rows, True


if __name__ == "__main__":
    sys.exit(main())
