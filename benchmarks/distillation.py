"""How many rollouts distillation needs, and how many GRPO, to the same held-out reward.

    python benchmarks/distillation.py [--seeds 5] [--good 0.9]

The task, the agent and GRPO's options are those of ``algorithms.py``. A teacher is trained by GRPO
from weights of its own (seed 1000). Then models of other seeds begin anew: by GRPO, and by
distillation from that teacher, which gets no reward. Prints, per seed, after how many training
rollouts the held-out reward first was ``--good`` or more, in evaluations after every second step.

Three seeds on two cores: distillation 704, 736, 928; grpo 1440, 1600, 1920.
"""

import argparse
import functools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from algorithms import train

TEACHER = 1000
EVERY = 2
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"groups_per_step": 8, "group_size": 10},
    "grpo, small steps": {"groups_per_step": 8, "group_size": 2},
    "distillation": {"groups_per_step": 16, "group_size": 1, "entropy_bonus": 0.0},
}
"""The second is there to say that it is not the size of steps that makes the difference."""


def rollouts_until(good: float, rewards: list[tuple[int, float]], per_step: int) -> int | None:
    """Of training; None where it never came."""
    return next((step * per_step for step, reward in rewards if reward >= good), None)


def main() -> None:
    """Train the teacher, then the others, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="so many, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--good", type=float, default=0.9)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, for distillation")
    parser.add_argument("--teacher", type=Path, help="a folder; None trains one")
    parser.add_argument("--only", choices=list(RUNS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agl-distillation-") as folder:
        teacher = given.teacher
        if teacher is None:
            summary = train("grpo", TEACHER, given.steps, Path(folder))
            teacher = summary["checkpoint"]
            print(f"teacher: {summary['val_rewards'][-1][1]:.3f}", flush=True)
        for name, options in RUNS.items():
            if name == "distillation":
                options = {**options, "teacher": str(teacher), **given.options}
            if given.only not in (None, name):
                continue
            needed: list[float] = []
            for seed in range(given.first, given.first + given.seeds):
                begun = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="agl-distillation-") as out:
                    run = functools.partial(train, evaluation={"every": EVERY}, **options)
                    summary = run(name.partition(",")[0], seed, given.steps, Path(out))
                per_step = options["groups_per_step"] * options["group_size"]
                count = rollouts_until(given.good, summary["val_rewards"], per_step)
                needed.append(count or float("inf"))
                curve = " ".join(f"{reward:.2f}" for _, reward in summary["val_rewards"])
                seconds = time.monotonic() - begun
                print(
                    f"{name} seed {seed}: {count} rollouts ({seconds:.0f} s): {curve}", flush=True
                )
            print(f"{name}: median {statistics.median(needed):g} rollouts", flush=True)


if __name__ == "__main__":
    main()
