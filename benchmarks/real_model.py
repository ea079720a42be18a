"""GRPO on a pretrained model, on sums of two numbers: seconds a step, memory, and what it learns.

    python benchmarks/real_model.py [FOLDER] [--steps 3] [--option "memory={check: false}" ...]

FOLDER is a model with a chat template; without it, it is SmolLM2, see `agl model get`. A step has
64 rollouts of at most 16 sampled tokens. Prints the metrics of the steps and the largest resident
memory. To compare trees, run it with the interpreter of each, by turns.
"""

import argparse
import asyncio
import functools
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

import agl

FINE = "AGL_BENCHMARK_FINE"


def tasks(number: int, seed: int) -> list[dict[str, int]]:
    """Sums of two numbers below 50."""
    chance = random.Random(seed)
    return [{"a": chance.randint(1, 49), "b": chance.randint(1, 49)} for _ in range(number)]


def question_of(task: dict[str, int]) -> str:
    """What the model is asked."""
    return f"What is {task['a']} + {task['b']}? Answer with the number only."


def reward_of(task: dict[str, int], answer: str) -> float:
    """1 for the right number, alone or in a sentence; with --fine more the nearer it comes."""
    right, words = task["a"] + task["b"], answer.replace(".", " ").split()
    if not os.environ.get(FINE):
        return float(str(right) in words)
    return max((1 / (1 + abs(right - int(one))) for one in words if one.isdecimal()), default=0.0)


@functools.cache
def openai_client(loop: asyncio.AbstractEventLoop) -> Any:
    """One per event loop, as in the quickstart: to make one takes 30 ms."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="not needed", base_url="http://set.per.rollout", max_retries=0)


@agl.rollout
async def agent(task: dict[str, int], llm: agl.LLM) -> float:
    """Ask once."""
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
    answer = await client.chat.completions.create(
        model=llm.model,
        messages=[{"role": "user", "content": question_of(task)}],
        **llm.sampling_parameters,
    )
    return reward_of(task, answer.choices[0].message.content or "")


def main() -> None:
    """Train, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--fine", action="store_true", help="nearly all rows are trained")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    os.environ[FINE] = "1" if given.fine else ""
    more = {
        name: yaml.safe_load(value) for name, _, value in (o.partition("=") for o in given.option)
    }
    if given.folder is None:
        from agl_testing.models import smollm2

        given.folder = smollm2()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        algorithm = agl.GRPO(
            model=str(given.folder),
            steps=given.steps,
            seed=given.seed,
            run_dir=folder,
            **{
                "groups_per_step": 8,
                "group_size": 8,
                "max_tokens": 16,
                "learning_rate": 5e-6,
                "evaluation": {"every": given.eval_every or None},
                "checkpoints": {"every": given.steps},
                **more,
            },
        )
        trainer = agl.Trainer(algorithm=algorithm, n_runners=1, concurrency=64, strategy="shm")
        trainer.fit(agent, train_dataset=tasks(256, 1), val_dataset=tasks(48, 2))
        lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{time.perf_counter() - begin:.0f} s in all, {used.ru_utime + used.ru_stime:.0f} s of CPU"
    )
    for line in map(json.loads, lines):
        print({k: round(v, 4) for k, v in line.items() if isinstance(v, int | float)})
    print(f"largest memory {used.ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
