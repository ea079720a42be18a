"""The agent and its tasks: puzzles of reasoning-gym, which also says how good an answer is."""

import argparse
import asyncio
import functools
import json
import random
import sys
from importlib.util import find_spec
from typing import Any

import agl
from agl.errors import install_line

PROMPT = agl.PromptTemplate(template="Answer as in the examples.", engine="f-string")
SAMPLING = {"temperature": 0.0, "max_tokens": 12}
"""What holds where a trainer says nothing else."""

# --- The agent ----------------------------------------------------------------------------------


@agl.rollout
async def solver(task: dict[str, Any], prompt: agl.PromptTemplate, llm: agl.LLM) -> float:
    """Ask the model once; the reward is reasoning-gym's score of its answer, from 0 to 1."""
    from reasoning_gym import get_score_answer_fn

    family = task["metadata"]["source_dataset"]
    client = openai_client(asyncio.get_running_loop()).with_options(base_url=llm.endpoint)
    answer = await client.chat.completions.create(
        model=llm.model,
        messages=[
            {"role": "system", "content": prompt.format()},
            *solved_examples(family),
            {"role": "user", "content": task["question"]},
        ],
        **{**SAMPLING, **llm.sampling_parameters},
    )
    said = (answer.choices[0].message.content or "").strip()
    return float(get_score_answer_fn(family)(said, task))


@functools.cache
def openai_client(loop: asyncio.AbstractEventLoop) -> Any:
    """One client per event loop: the connections that it keeps belong to the loop."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="not needed", base_url="http://set.per.rollout", max_retries=0)


@functools.cache
def solved_examples(family: str) -> list[dict[str, str]]:
    """Two questions of a family with their answers, as turns of a conversation."""
    return [
        {"role": role, "content": task[part]}
        for task in draw(family, seed=0, size=2)
        for role, part in (("user", "question"), ("assistant", "answer"))
    ]


# --- The tasks ----------------------------------------------------------------------------------

FAMILIES: dict[str, dict[str, Any]] = {
    "needle_haystack": {"min_num_statements": 2, "max_num_statements": 4},
    "basic_arithmetic": {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 2,
        "operators": ["+", "-"],
        "allow_parentheses": False,
    },
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
}
"""What is asked: families of reasoning-gym, with options that make them easy."""


def draw(family: str, seed: int, size: int) -> list[dict[str, Any]]:
    """Tasks of a family: a question, its answer, and metadata."""
    import reasoning_gym

    drawn = reasoning_gym.create_dataset(family, seed=seed, size=size, **FAMILIES[family])
    return [json.loads(json.dumps(drawn[number])) for number in range(size)]


def split_tasks(
    training: int, held_out: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """So many tasks of each family to train on, and held-out ones, which training never asks.

    reasoning-gym draws task ``n`` with seed ``seed + n``, so that seeds must be far apart.
    """
    train: list[dict[str, Any]] = []
    val: list[dict[str, Any]] = []
    for family in FAMILIES:
        train += (mine := draw(family, 1_000_000 * (2 * seed + 1), training))
        asked = {task["question"] for task in mine}
        others = draw(family, 1_000_000 * (2 * seed + 2), 4 * held_out)
        new = {task["question"]: task for task in others if task["question"] not in asked}
        val += list(new.values())[:held_out]
    random.Random(seed).shuffle(train)
    return train, val


# --- The command lines --------------------------------------------------------------------------


def at_least(least: int) -> Any:
    """The type of an argument that is a count."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number of at least {least}; got {text!r}"
            )
        return int(text)

    return count


def check_packages(*needed: str) -> None:
    """End with how to install what is missing, before anything else is done."""
    names = {one: one.partition("==")[0].replace("-", "_") for one in needed}
    if missing := [one for one, name in names.items() if find_spec(name) is None]:
        sys.exit(f"this example needs {', '.join(missing)}. Run: {install_line(*missing)}")
