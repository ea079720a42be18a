"""Train the quickstart's agent by each algorithm, with several seeds, and say what it then gets.

    python benchmarks/algorithms.py [--algorithm ppo reinforce++] [--seeds 5] [--steps 60]
    python benchmarks/algorithms.py --algorithm grpo --lora 8
    python benchmarks/algorithms.py --curves curves.jsonl --picture curves.svg

Prints, per run, the held-out reward before and after, and per algorithm how many of its seeds
reached 0.9. The options are those of the quickstart, and the algorithm's own in ``OPTIONS``.

With ``--lora RANK`` an adapter is trained, on a model that supervised training has taught the
words: it has read conversations of somebody who looks into any room. Then a seed counts whose
reward has risen by 0.2 or more.

With ``--curves FILE`` the held-out rewards of each run are added to a file, a line of JSON each,
and ``--picture`` draws what that file then has.
"""

import argparse
import asyncio
import functools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/quickstart"))

from quickstart import find_the_cat
from world import ROOMS, House, build_model, build_tokenizer, split_tasks

import agl

OPTIONS: dict[str, dict[str, Any]] = {
    "cispo": {},
    "grpo": {},
    "gspo": {
        "clip": {"low": 0.2, "high": 0.2}
    },  # a row has a few words: its ratio moves as that of a token
    "ppo": {"critic_learning_rate": 1e-3, "gae_lambda": 1.0},
    "reinforce++": {},
    "rloo": {},
}
GOOD, RISE = 0.9, 0.2


def build_taught(seed: int) -> Any:
    """The quickstart's model after it has read conversations in which rooms are drawn blindly."""
    import torch

    model, tokenizer, chance = build_model(seed), build_tokenizer(), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tasks = split_tasks()[0]
    for _ in range(300):
        read: list[str] = []
        for task in chance.choices(tasks, k=32):
            house = House(**task)
            messages = [{"role": "user", "content": house.first_message()}]
            while not house.is_over:
                room = chance.choice(ROOMS)
                messages.append({"role": "assistant", "content": room})
                messages.append({"role": "user", "content": house.look(room)})
            read.append(tokenizer.apply_chat_template(messages, tokenize=False))
        rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in read]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
        loss = model(input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def train(
    name: str,
    seed: int,
    steps: int,
    out: Path,
    *,
    wrap: Callable[[Any], Any] = lambda agent: agent,
    concurrency: int = 64,
    **options: Any,
) -> dict[str, Any]:
    """The run's summary.

    Args:
        name: Of the algorithm.
        seed: Of the run, and of the model's first weights.
        steps: At most.
        out: Its folder.
        wrap: Makes the agent out of that of the quickstart.
        concurrency: Of the one runner.
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
        "stopping": {"target_reward": 0.97},
        "evaluation": {"temperature": 0.5, "copies": 4, "every": 5},
        "seed": seed,
        "device": "cpu",
        "torch_threads": 1,
        "show_progress": False,
    }
    store = agl.SqliteLightningStore(out / "store.db")
    agl.Trainer(
        algorithm={"type": name, **common, **OPTIONS.get(name, {}), **options},
        store=store,
        run_dir=out,
        strategy={"type": "cs", "server_port": 0},
        n_runners=1,
        concurrency=concurrency,
    ).fit(wrap(find_the_cat), train_tasks, val_dataset=held_out_tasks)
    asyncio.run(store.close())
    return json.loads((out / "summary.json").read_text())


def draw(curves: Path, picture: Path) -> None:
    """A panel per algorithm with the held-out reward of each seed by the step."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    runs = [json.loads(line) for line in curves.read_text(encoding="utf-8").splitlines()]
    names = sorted({run["algorithm"] for run in runs})
    figure = Figure(figsize=(9, 2.6 * -(-len(names) // 3)), layout="constrained")
    panels = figure.subplots(-(-len(names) // 3), 3, sharex=True, sharey=True, squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        for run in sorted((run for run in runs if run["algorithm"] == name), key=_seed):
            steps, rewards = zip(*run["val_rewards"], strict=True)
            seed = run["seed"]
            panel.plot(steps, rewards, marker=".", label=f"seed {seed}", color=f"C{seed}")
        panel.axhline(GOOD, color="grey", linewidth=0.8, linestyle=":")
        panel.set(title=name, ylim=(0, 1.02), xlabel="step", ylabel="held-out reward")
        panel.label_outer()
    max(panels.flat, key=lambda panel: len(panel.lines)).legend(fontsize="small")
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    with rc_context({"svg.hashsalt": "agl"}):
        figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def _seed(run: dict[str, Any]) -> int:
    return run["seed"]


def main() -> None:
    """Train and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", nargs="+", choices=sorted(OPTIONS), default=sorted(OPTIONS))
    parser.add_argument("--seeds", type=int, default=5, help="so many, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lora", type=int, metavar="RANK", help="of the adapter that is trained")
    parser.add_argument("--curves", type=Path, metavar="FILE", help="held-out rewards, added to it")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of what --curves then has")
    given = parser.parse_args()
    if given.picture and not given.curves:
        parser.error("--picture draws what --curves FILE has: name both")
    for name in given.algorithm:
        good = 0
        for seed in range(given.first, given.first + given.seeds):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="agl-algorithms-") as folder:
                options: dict[str, Any] = {}
                if given.lora:
                    build = functools.partial(build_taught, seed)
                    options = {"model": build, "lora": {"rank": given.lora}, "learning_rate": 3e-3}
                summary = train(name, seed, given.steps, Path(folder), **options)
            rewards = [reward for _, reward in summary["val_rewards"]]
            good += rewards[-1] - rewards[0] >= RISE if given.lora else rewards[-1] >= GOOD
            seconds = time.monotonic() - begun
            print(f"{name} seed {seed}: {rewards[0]:.3f} -> {rewards[-1]:.3f} ({seconds:.0f} s)")
            sys.stdout.flush()
            if given.curves:
                run = {"algorithm": name, "seed": seed, "val_rewards": summary["val_rewards"]}
                with given.curves.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run) + "\n")
        what = f"that rose by {RISE}" if given.lora else f"at {GOOD}"
        print(f"{name}: {good} of {given.seeds} seeds {what} or more", flush=True)
    if given.picture:
        draw(given.curves, given.picture)


if __name__ == "__main__":
    main()
