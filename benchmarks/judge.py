"""Train the quickstart's agent without its reward function: a judge reads what it said.

    python benchmarks/judge.py [--algorithm grpo] [--seeds 1] [--steps 60]

The agent returns no reward in training; held out it does, so that one can see what it learned. The
judge is a server on this machine that is asked as any model is. It reads the conversations that it
is shown, and knows what a person knows of the house: what goes on in which room. Whoever looked
there last has found the cat. Prints, per seed, the held-out reward before and after, how often
the judge was asked, and what the ledger has of that.

Seed 0 of grpo, 60 steps: 0.05 to 1.00; asked 479 times, 479 booked.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import algorithms
from algorithms import train
from quickstart import openai_client
from world import SOUNDS, House, Task

import agl
from agl_testing.echo_llm import EchoLLM

ROOM_OF = {sound: room for room, sound in SOUNDS.items()}


@agl.rollout
async def not_told(task: Task, llm: agl.LLM, rollout: agl.Rollout) -> float | None:
    """That of the quickstart; nobody says in training whether it was good."""
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
            return None if rollout.mode == "train" else house.reward
        messages += [{"role": "assistant", "content": room}, {"role": "user", "content": heard}]


def compare(request: dict[str, Any]) -> str:
    """Scores by the texts alone."""
    shown = [json.loads(line) for line in request["messages"][1]["content"].splitlines()]
    attempts = {one["attempt"]: one["messages"] for one in shown if "attempt" in one}
    said = [message["content"] for messages in attempts.values() for message in messages]
    heard = {text.removeprefix("no cat you hear ") for text in said if text.startswith("no cat")}
    cat = {ROOM_OF[sound] for sound in heard}
    scores = [
        {
            "attempt": number,
            "why": f"it ends in the {messages[-1]['content']}; {', '.join(heard)} was heard",
            "score": float(messages[-1]["content"] in cat),
        }
        for number, messages in attempts.items()
    ]
    return json.dumps({"scores": scores})


def main() -> None:
    """Train and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=sorted(algorithms.OPTIONS), default="grpo")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    for seed in range(given.seeds):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="agl-judge-") as folder, EchoLLM(compare) as server:
            credit = {"type": "judge", "model": "wise", "base_url": server.url}
            options = {"credit": credit, "stopping": {}, "evaluation": {"every": 10}}
            options["wrap"] = lambda _: not_told
            summary = train(given.algorithm, seed, given.steps, Path(folder), **options)
            asked = len(server.requests)
        curve = " ".join(f"{reward:.2f}" for _, reward in summary["val_rewards"])
        booked = summary["calls_excluded"].get("judge", 0)
        seconds = time.monotonic() - begun
        print(
            f"{given.algorithm} seed {seed}: held out {curve}; judge asked {asked} times,", end=" "
        )
        print(f"{booked} booked ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
