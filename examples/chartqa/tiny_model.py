"""A language model small enough to train on a CPU, which takes numbers off the wrong line, mostly.

Before the run it is taught, in seconds, what the agent's prompts and their answers look like: a
third of the answers that it sees are right, the others are any number of the chart. The verdicts
that it sees are drawn at random. So it answers in the right form and mostly wrong, and
reinforcement learning has something to find. It reads text: a script sees the charts for it.
"""

import random

import prompts
from chart_tasks import ChartTask, load_tasks
from prepare_data import questions_about, small_charts
from scripted_llm import data_of

NUM_TASKS = 8
SHARE_RIGHT = 1 / 3
VERDICTS = ["THE ANSWER IS RIGHT", "THE ANSWER IS WRONG"]


def tiny_tasks() -> list[ChartTask]:
    """Of eight small charts, the question for one of their numbers.

    Raises:
        ValueError: Other charts have been prepared.
    """
    questions = [questions_about(chart)[0][0] for chart in small_charts()[:NUM_TASKS]]
    tasks = {task["question"]: task for task in load_tasks()[0]}
    if missing := [question for question in questions if question not in tasks]:
        raise ValueError(
            f"the tiny model is for the small charts, of which {missing[0]!r} is a question; the "
            "prepared charts have none such. Run `python prepare_data.py` without other arguments"
        )
    return [tasks[question] for question in questions]


def conversation(draw: random.Random) -> list[dict[str, str]]:
    """A prompt of one of three kinds for one of the tasks, with an answer."""
    chart = draw.choice(small_charts()[:NUM_TASKS])
    question, right = questions_about(chart)[0]

    def answer() -> str:
        numbers = [str(value) for value in chart["values"].values()]
        value = right if draw.random() < SHARE_RIGHT else draw.choice(numbers)
        # Words apart: one is one token.
        return f"<answer> {value} </answer>"

    known = {"question": question, "data": data_of(chart)}
    said = {"answer": answer(), "feedback": draw.choice(VERDICTS)}
    prompt, reply = draw.choice(
        [
            (prompts.CALCULATE.format(**known), answer()),
            (prompts.CHECK.format(**known, **said), draw.choice(VERDICTS)),
            (prompts.REFINE.format(**known, **said), answer()),
        ]
    )
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
