"""Train the quickstart's agent by each algorithm, with several seeds, and say what it then gets.

    python benchmarks/algorithms.py [--algorithm ppo reinforce++] [--seeds 5] [--steps 60]

Prints, per run, the held-out reward before and after, and per algorithm how many of its seeds
reached 0.9. The options are those of the quickstart, and the algorithm's own in ``OPTIONS``.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/quickstart"))

from quickstart import find_the_cat
from world import build_model, build_tokenizer, split_tasks

import agl

OPTIONS: dict[str, dict[str, Any]] = {
    "cispo": {},
    "grpo": {},
    "gspo": {"clip_range": 0.2},  # a row has a few words: its ratio moves as that of a token
    "ppo": {"critic_learning_rate": 1e-3, "gae_lambda": 1.0},
    "reinforce++": {},
    "rloo": {},
}
GOOD = 0.9


def train(name: str, seed: int, steps: int, out: Path, **options: Any) -> dict[str, Any]:
    """The run's summary.

    Args:
        name: Of the algorithm.
        seed: Of the run, and of the model's first weights.
        steps: At most.
        out: Its folder.
        options: Of the algorithm, besides those here.
    """
    train_tasks, held_out_tasks = split_tasks()
    common = {
        "model": functools.partial(build_model, seed),
        "tokenizer": build_tokenizer,
        "steps": steps,
        "groups_per_step": 8,
        "group_size": 10,
        "epochs": 4,
        "learning_rate": 1e-3,
        "entropy_bonus": 0.06,
        "max_tokens": 1,
        "target_reward": 0.97,
        "eval_temperature": 0.5,
        "eval_copies": 4,
        "seed": seed,
        "device": "cpu",
        "torch_threads": 1,
        "show_progress": False,
    }
    agl.Trainer(
        algorithm={"type": name, **common, **OPTIONS.get(name, {}), **options},
        store=agl.SqliteLightningStore(out / "store.db"),
        run_dir=out,
        strategy={"type": "cs", "server_port": 0},
        n_runners=1,
        concurrency=64,
    ).fit(find_the_cat, train_tasks, val_dataset=held_out_tasks)
    return json.loads((out / "summary.json").read_text())


def main() -> None:
    """Train and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", nargs="+", choices=sorted(OPTIONS), default=sorted(OPTIONS))
    parser.add_argument("--seeds", type=int, default=5, help="so many, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    for name in given.algorithm:
        good = 0
        for seed in range(given.first, given.first + given.seeds):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="agl-algorithms-") as folder:
                summary = train(name, seed, given.steps, Path(folder))
            rewards = [reward for _, reward in summary["val_rewards"]]
            good += rewards[-1] >= GOOD
            seconds = time.monotonic() - begun
            print(f"{name} seed {seed}: {rewards[0]:.3f} -> {rewards[-1]:.3f} ({seconds:.0f} s)")
            sys.stdout.flush()
        print(f"{name}: {good} of {given.seeds} seeds at {GOOD} or more", flush=True)


if __name__ == "__main__":
    main()
