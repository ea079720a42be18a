"""A language model small enough to train on a CPU, which looks things up, mostly the wrong ones.

Before the run it is taught, in seconds, to call the tool once and to answer from what it returns;
most of the calls that it sees ask for a person drawn by chance. So it answers in the right form and
about the wrong person, and reinforcement learning has something to find: the name to look up is the
one in the question.
"""

import random
import sys
from pathlib import Path
from typing import Any

from rag_agent import INSTRUCTIONS, rag_agent
from retriever import WordRetriever
from wiki_tasks import one_step_tasks, person_in, place_in, small_world

import agl
from agl_testing.tiny_model import tiny_model

SHARE_RIGHT = 1 / 3

PASSAGES = WordRetriever(small_world()[0])
QUESTIONS = [task["question"] for part in one_step_tasks() for task in part]


def conversation(draw: random.Random) -> list[dict[str, Any]]:
    """A rollout as the model sees it, whomever it looked up."""
    question = draw.choice(QUESTIONS)
    other = question if draw.random() < SHARE_RIGHT else draw.choice(QUESTIONS)
    arguments = {"query": (person := person_in(other)), "top_k": 1}
    call = {"type": "function", "function": {"name": "retrieve", "arguments": arguments}}
    (passage,) = PASSAGES.search(person, 1)
    place = place_in(passage, question)
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": passage},
        {"role": "assistant", "content": f"<answer> {place} </answer>"},
    ]


def train_tiny(steps: int, runners: int, out: Path) -> None:
    """The line of ``train_rag.py`` with this model, on a CPU; needs ``agl-verl[backend]``."""
    sys.path.append(str(Path(__file__).parents[2] / "tests/plugins/verl/real"))
    from verl_cpu import cpu_config, use_cpu

    use_cpu()
    tasks = one_step_tasks()
    config = cpu_config(
        tiny_model(out / "tiny-model", conversation),
        prompts_per_step=8,
        rollouts_per_prompt=12,
        max_prompt_length=160,
        max_response_length=12,
        learning_rate=3e-4,
        actor_rollout_ref={
            "actor": {"ppo_epochs": 4},
            "rollout": {
                "multi_turn": {"format": "hermes"},
                "val_kwargs": {"n": 8, "temperature": 1.0, "do_sample": True, "top_p": 1.0},
            },
        },
        trainer={
            "total_training_steps": steps,
            "total_epochs": steps,
            "val_before_train": True,
            "test_freq": steps,
        },
    )
    algorithm = agl.VERL(config, rollout_timeout_seconds=120, run_dir=str(out))
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        concurrency=16,
        strategy={"type": "cs", "server_port": 0},
    )
    trainer.fit(rag_agent, tasks[0], val_dataset=tasks[1])
    print(f"reward of each step: {[round(r, 2) for r in algorithm.summary['rewards']]}")
    for step, reward in algorithm.summary["val_rewards"]:
        print(f"reward on held-out questions after step {step}: {reward:.2f}")
