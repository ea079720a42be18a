"""A language model small enough to fine-tune on a CPU, which adds numbers with the calculator.

Before the run it is taught, in seconds, to call the tool and to repeat what it returns; half of the
calls that it sees have numbers drawn by chance. So it answers in the right form and mostly wrong,
and fine-tuning on its own right answers has something to find.
"""

import random

from math_agent import INSTRUCTIONS, MathProblem, math_problem

NUMBERS = range(1, 6)
SHARE_RIGHT = 1 / 2


def tiny_problems() -> list[MathProblem]:
    """All sums of two numbers from 1 to 5."""
    return [math_problem(f"What is {a} + {b} ?", a + b) for a in NUMBERS for b in NUMBERS]


def tool_call(a: int, b: int) -> str:
    """How the model writes a call, in the form of Hermes."""
    arguments = f'{{"expression": "{a} + {b}"}}'
    return f'<tool_call> {{"name": "calculate", "arguments": {arguments}}} </tool_call>'


def conversation(draw: random.Random) -> list[dict[str, str]]:
    """A rollout as the model sees it, whichever numbers it called the tool with."""
    a, b = draw.choice(NUMBERS), draw.choice(NUMBERS)
    is_right = draw.random() < SHARE_RIGHT
    called = (a, b) if is_right else (draw.choice(NUMBERS), draw.choice(NUMBERS))
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is {a} + {b} ?"},
        {"role": "assistant", "content": tool_call(*called)},
        {"role": "tool", "content": str(sum(called))},
        {"role": "assistant", "content": f"### {sum(called)} ###"},
    ]
