"""SmolLM2-135M learns puzzles of reasoning-gym on a CPU: its own best answers first, then GRPO.

    python train.py [--seed 0] [--steps 20] [--out DIR]

Two runs, in two folders of DIR: `sft` trains the stock model on the best tenth of its own answers,
and `grpo` goes on from there. Then a table of the held-out rewards, and a curve. A command that was
killed goes on with the same DIR. See README.md beside this file.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from solver import FAMILIES, PROMPT, at_least, check_packages, solver, split_tasks

import agl

Tasks = list[dict[str, Any]]
Rewards = dict[int, dict[tuple[str, str], float]]
"""Evaluation (a version, or a step) -> family and question -> reward."""

# --- 1. The training ----------------------------------------------------------------------------


def fit(algorithm: Any, folder: Path, tasks: tuple[Tasks, Tasks]) -> tuple[str, Rewards]:
    """Train in a folder, which gets the store, metrics and weights.

    Returns:
        The folder of the trained model, and what held-out tasks got on the way to it.
    """
    train, held_out = tasks
    folder.mkdir(parents=True, exist_ok=True)
    trainer = agl.Trainer(
        algorithm=algorithm,
        initial_resources={"prompt": PROMPT},
        store=agl.SqliteLightningStore(folder / "store.db"),
        run_dir=folder,  # a run that is there goes on
        strategy={"type": "cs", "server_port": 0},
        n_runners=1,
        concurrency=64,  # rollouts at once
    )
    result = trainer.fit(solver, train, val_dataset=held_out)
    return str(result.checkpoint), asyncio.run(held_out_rewards(trainer.store))


async def held_out_rewards(store: agl.LightningStore) -> Rewards:
    """What each held-out task got in each evaluation of a run; closes its store."""
    found: Rewards = {}
    for rollout in await store.query_rollouts():
        if rollout.mode == "val" and rollout.reward is not None:
            task, step = rollout.input, (rollout.metadata or {})["step"]
            of = task["metadata"]["source_dataset"]
            found.setdefault(step, {})[of, task["question"]] = rollout.reward
    await store.close()
    return dict(sorted(found.items()))


def train(
    model: str, out: Path, steps: int, seed: int, tasks: tuple[Tasks, Tasks]
) -> tuple[Rewards, Rewards]:
    """From the stock model to the end: the held-out rewards of both runs."""
    common = {"max_tokens": 12, "temperature": 0.8, "seed": seed}
    sft = {
        "type": "sft",
        "model": model,
        "iterations": 1,
        "rollouts_per_task": 4,
        "keep_fraction": 0.1,  # the best tenth of the answers
        "lora": None,  # all weights
        "learning_rate": 2e-5,
        "epochs": 2,
        "max_length": 384,  # tokens of prompt and answer
        "engine": "trl",
        **common,
    }
    version, of_sft = fit(sft, out / "sft", tasks)
    grpo = {
        "type": "grpo",
        "model": version,
        "steps": steps,
        "groups_per_step": 8,  # tasks of a step
        "group_size": 8,  # rollouts of a task
        "learning_rate": 1e-5,
        "server": {"max_model_tokens": 384},
        "evaluation": {"every": 10},
        "checkpoints": {"every": 5, "keep_last": 1},  # from where a run that was killed goes on
        **common,
    }
    _, of_grpo = fit(grpo, out / "grpo", tasks)
    return of_sft, of_grpo


# --- 2. What came of it -------------------------------------------------------------------------


def show(sft: Rewards, grpo: Rewards, out: Path) -> None:
    """A table of the held-out rewards, and a curve."""
    stages = [sft[min(sft)], sft[max(sft)], grpo[max(grpo)]]
    print("| held out | tasks | stock | after sft | after grpo | gain, 95 % interval |")
    print("|---|---|---|---|---|---|")
    for family in [*FAMILIES, "all"]:
        mine = [one for one in stages[0] if family in (one[0], "all")]
        means = [statistics.fmean(stage[one] for one in mine) for stage in stages]
        changes = [stages[-1][one] - stages[0][one] for one in mine]
        # Each task is compared with itself; the mean of so many differences is nearly normal.
        half = 1.96 * statistics.stdev(changes) / len(changes) ** 0.5
        middle = statistics.fmean(changes)
        cells = [family, str(len(mine)), *(f"{mean:.3f}" for mean in means)]
        cells.append(f"{middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f})")
        print(f"| {' | '.join(cells)} |")
    print(f"curve: {draw_curve(grpo, stages[0], out / 'curve.svg')}")


def draw_curve(grpo: Rewards, stock: dict[tuple[str, str], float], path: Path) -> Path:
    """Held-out reward of each family: the stock model, and then by the step of GRPO."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    steps = [*grpo]
    for family in FAMILIES:
        mine = [one for one in stock if one[0] == family]
        line = [statistics.fmean(rewards[one] for one in mine) for rewards in grpo.values()]
        begin = statistics.fmean(stock[one] for one in mine)
        (drawn,) = axes.plot(steps, line, "o-", label=family)
        axes.plot([-6, steps[0]], [begin, line[0]], "o--", color=drawn.get_color())
    axes.set_xticks([-6, *steps], ["stock", *("sft" if step == 0 else str(step) for step in steps)])
    axes.set(xlabel="steps of GRPO", ylabel="held-out reward", ylim=(-0.02, 1.02))
    axes.set_title("SmolLM2-135M on reasoning-gym, two CPU cores")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
    return path


def main() -> None:
    """Read the command line, train, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of tasks, order and sampling")
    parser.add_argument("--steps", type=at_least(1), default=20, help="of GRPO")
    parser.add_argument("--model", help="a folder; without it SmolLM2, see agl model get")
    parser.add_argument("--training-tasks", type=at_least(1), default=100, help="of each family")
    parser.add_argument("--held-out-tasks", type=at_least(2), default=50, help="of each family")
    parser.add_argument("--out", type=Path, help="folder of the runs; one that was killed goes on")
    given = parser.parse_args()
    check_packages("matplotlib", "openai", "reasoning-gym==0.1.25")
    out = given.out or Path("agl-runs") / time.strftime("reasoning-gym-%Y%m%d-%H%M%S")
    begin = time.perf_counter()
    if given.model is None:
        from agl_testing.models import smollm2

        given.model = str(smollm2())
    tasks = split_tasks(given.training_tasks, given.held_out_tasks, given.seed)
    of_sft, of_grpo = train(given.model, out, given.steps, given.seed, tasks)
    show(of_sft, of_grpo, out)
    print(f"{(time.perf_counter() - begin) / 60:.1f} minutes, in {out}")


if __name__ == "__main__":
    main()
