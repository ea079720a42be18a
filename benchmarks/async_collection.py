"""Updates per minute with ``max_staleness`` and without, where rollouts take 0.05 to 2 seconds.

The quickstart's agent takes its time: before its first call it sleeps as long as the seed of its
rollout says, half of them up to 0.2 seconds, and one of six the whole 2 (Pareto, alpha 1/2). Of
each seed a run that waits for every step and one that does not are made, in turn, and compared:

    updates/min   steps by the seconds that they took together, evaluations and start aside
    idle          part of these seconds in which the trainer had nothing to compute
    lag           how many updates the weights that sampled were behind, on average
    reward        held out, at the end

    python benchmarks/async_collection.py [--seeds 2] [--steps 60] [--staleness 2]

Exit code 1 when the ratio of the medians is below 1.6, or a reward at the end is below 0.9.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from algorithms import GOOD, train

import agl

SHORTEST, LONGEST = 0.05, 2.0
RATIO = 1.6


def seconds_of(rollout: agl.Rollout) -> float:
    """How long a rollout sleeps; the same one in each run of a seed."""
    share = random.Random((rollout.metadata or {})["seed"]).random()
    return min(LONGEST, SHORTEST / (1.0 - share) ** 2)


def sleeping(agent: Any) -> Any:
    """An agent that takes its time."""

    @agl.rollout
    async def slow(task: Any, llm: agl.LLM, rollout: agl.Rollout) -> float:
        await asyncio.sleep(seconds_of(rollout))
        return await agent(task, llm)

    return slow


def measure(seed: int, steps: int, staleness: int, folder: Path) -> dict[str, float]:
    """What came of one run."""
    # Small steps, so that machines with two busy cores have time to sleep.
    options = {"stopping": {}, "groups_per_step": 4, "group_size": 8, "epochs": 2}
    options |= {"max_staleness": staleness, "evaluation": {"copies": 1}}
    summary = train("grpo", seed, steps, folder, wrap=sleeping, concurrency=256, **options)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "time/step" in line]
    seconds = sum(line["time/step"] for line in lines)
    # Who waits for every step is idle as long as its rollouts take.
    idle = sum(line["time/idle" if staleness else "time/rollouts"] for line in lines)
    return {
        "updates/min": 60 * len(lines) / seconds,
        "idle": idle / seconds,
        "lag": statistics.mean(line.get("version_lag", 0.0) for line in lines),
        "stale": sum(line.get("rollouts/stale", 0) for line in lines),
        "reward": summary["val_rewards"][-1][1],
    }


def main() -> None:
    """Measure in turn, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--staleness", type=int, default=2)
    given = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {0: [], given.staleness: []}
    for seed in range(given.seeds):
        for staleness, runs in found.items():
            with tempfile.TemporaryDirectory(prefix="agl-async-") as folder:
                runs.append(measure(seed, given.steps, staleness, Path(folder)))
            said = "  ".join(f"{name} {value:.2f}" for name, value in runs[-1].items())
            print(f"seed {seed}  max_staleness {staleness}  {said}", flush=True)
    waits, does_not = (
        statistics.median(run["updates/min"] for run in runs) for runs in found.values()
    )
    worst = min(run["reward"] for runs in found.values() for run in runs)
    print(f"{does_not / waits:.2f} times the updates per minute; lowest final reward {worst:.3f}")
    sys.exit(does_not / waits < RATIO or worst < GOOD)


if __name__ == "__main__":
    main()
