"""Train an agent, from random weights to a nearly perfect score, in about a minute on a laptop.

    python quickstart.py [--seed 0] [--steps 60] [--out DIR] [--runners 2] [--deterministic]

No key, no GPU, no download. The agent is plain `openai` code; the way it learns is the way a large
model does: rollouts in a store, runners in processes of their own, a gateway that records every
model call, training rows, GRPO. See README.md beside this file.
"""

import argparse
import asyncio
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

from world import LOOKS, House, Task, best_blind_reward, build_model, build_tokenizer, split_tasks

import agl

# --- 1. The agent -------------------------------------------------------------------------------


@functools.cache
def openai_client(loop: asyncio.AbstractEventLoop) -> Any:
    """One client per event loop: the connections that it keeps belong to the loop."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="not needed", base_url="http://set.per.rollout", max_retries=0)


@agl.rollout
async def find_the_cat(task: Task, llm: agl.LLM) -> float:
    """Look into rooms, listen, look again; the returned number is the reward."""
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
    house = House(**task)
    messages = [{"role": "user", "content": house.first_message()}]
    while True:
        answer = await client.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters
        )
        room = answer.choices[0].message.content
        heard = house.look(room)
        if house.is_over:
            return house.reward
        messages += [{"role": "assistant", "content": room}, {"role": "user", "content": heard}]


# --- 2. The training ----------------------------------------------------------------------------


def train(seed: int, steps: int, out: Path, runners: int, deterministic: bool) -> None:
    """Train in `out`, which gets the store file, metrics and checkpoints."""
    train_tasks, held_out_tasks = split_tasks()
    trainer = agl.Trainer(
        algorithm=agl.GRPO(
            model=functools.partial(build_model, seed),
            tokenizer=build_tokenizer,
            steps=steps,
            groups_per_step=8,  # tasks per step
            group_size=10,  # rollouts per task
            epochs=4,
            learning_rate=1e-3,
            entropy_bonus=0.06,  # without it, the model gives up on some rooms
            max_tokens=1,  # a room is one word
            stopping={"target_reward": 0.97},  # end early when three steps in a row reach it
            # On the held-out tasks, less adventurous than in training.
            evaluation={"every": 10, "temperature": 0.5, "copies": 4},
            checkpoints={"every": 5},  # from where a run that was killed goes on
            seed=seed,
            deterministic=deterministic,
            device="cpu",
            torch_threads=1,
        ),
        store=agl.SqliteLightningStore(out / "store.db"),
        run_dir=out,  # a run that is there goes on
        strategy={"type": "cs", "server_port": 0},
        n_runners=runners,
        concurrency=64,  # rollouts at once in each; the agent keeps nothing global
    )
    trainer.fit(find_the_cat, train_tasks, val_dataset=held_out_tasks)


# --- 3. What came of it -------------------------------------------------------------------------


def show_summary(out: Path) -> None:
    """A table on standard output, from what the run has written."""
    from rich.console import Console
    from rich.table import Table

    summary = json.loads((out / "summary.json").read_text())
    before, after = summary["val_rewards"][0][1], summary["val_rewards"][-1][1]
    excluded = ", ".join(f"{n} {reason}" for reason, n in summary["calls_excluded"].items())
    table = Table(title="find the cat", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # a path must be there to its end
    for name, value in {
        "held-out reward before": f"{before:.3f}",
        "held-out reward after": f"[bold green]{after:.3f}[/]",
        "best blind plan (no listening)": f"{best_blind_reward():.3f}",
        "steps": summary["steps"],
        "seconds": f"{summary['seconds']:.0f}",
        "rollouts": f"{summary['rollouts']} ({summary['rollouts_failed']} failed)",
        "model calls": summary["calls"],
        "  trained": summary["calls_trained"],
        "  excluded": excluded,
        "checkpoint": summary["checkpoint"],
        "store": out / "store.db",
        "curve": draw_curve(summary, out / "reward.png"),
    }.items():
        table.add_row(name, str(value))
    Console().print(table)


def draw_curve(summary: dict[str, Any], path: Path) -> Path:
    """Mean reward per step, held-out reward before and after, and the blind plan."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rewards = summary["rewards"]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(range(1, len(rewards) + 1), rewards, color="#2563eb", label="training, mean of step")
    held_out_steps, held_out = zip(*summary["val_rewards"], strict=True)
    axes.plot(held_out_steps, held_out, "o", color="#16a34a", markersize=8, label="held-out tasks")
    axes.axhline(best_blind_reward(), color="#dc2626", linestyle="--", label="best blind plan")
    axes.set(xlabel="step", ylabel="reward", ylim=(-0.02, 1.02), title="An agent learns to listen")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Read the command line, train, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of model, tasks and sampling")
    parser.add_argument("--steps", type=int, default=60, help="at most so many")
    parser.add_argument("--out", type=Path, help="folder of the run; one that was killed goes on")
    parser.add_argument("--runners", type=int, default=2, help="processes that run the agent")
    parser.add_argument("--deterministic", action="store_true", help="the same run bit for bit")
    options = parser.parse_args()
    out = options.out or Path("agl-runs") / time.strftime("quickstart-%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    print(f"An agent has {LOOKS} looks to find a cat; its model has random weights.")
    train(options.seed, options.steps, out, options.runners, options.deterministic)
    show_summary(out)


if __name__ == "__main__":
    sys.exit(main())
