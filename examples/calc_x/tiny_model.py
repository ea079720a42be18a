"""A language model small enough to train on a CPU, which uses the calculator, mostly wrongly.

Before the run it is taught, in seconds, to call the tool and to repeat what it returns; most of the
calls that it sees have numbers drawn by chance. So it answers in the right form and with the wrong
number, as larger models do at first with harder problems, and there is something to learn.
"""

import random
from typing import Any

from calc_agent import SYSTEM_MESSAGE
from calc_tasks import CalcTask, calc_task

NUMBERS = range(1, 7)
HELD_OUT = 6
SHARE_RIGHT = 1 / 4


def tiny_tasks() -> tuple[list[CalcTask], list[CalcTask]]:
    """All sums of two numbers from 1 to 6, in an order of their own; six of them are held out."""
    tasks = [calc_task(f"What is {a} + {b} ?", str(a + b)) for a in NUMBERS for b in NUMBERS]
    random.Random(0).shuffle(tasks)
    return tasks[HELD_OUT:], tasks[:HELD_OUT]


def conversation(draw: random.Random) -> list[dict[str, Any]]:
    """A rollout as the model sees it, whichever numbers it called the tool with."""
    a, b = draw.choice(NUMBERS), draw.choice(NUMBERS)
    is_right = draw.random() < SHARE_RIGHT
    called = (a, b) if is_right else (draw.choice(NUMBERS), draw.choice(NUMBERS))
    arguments = {"expression": f"{called[0]} + {called[1]}"}
    call = {"type": "function", "function": {"name": "calculate", "arguments": arguments}}
    return [
        {"role": "system", "content": SYSTEM_MESSAGE},
        {"role": "user", "content": f"What is {a} + {b} ?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(sum(called))},
        {"role": "assistant", "content": f"### ANSWER: {sum(called)} ###"},
    ]
