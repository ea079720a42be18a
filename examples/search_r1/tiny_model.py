"""A language model small enough to train on a CPU, which searches, mostly for the wrong person.

Before the run it is taught, in seconds, to search once and to answer from what it gets; most of the
searches that it sees are for a person drawn by chance. So it answers in the right form and about
the wrong person, and reinforcement learning has something to find: whom the question names.
"""

import random

from search_r1_agent import PROMPT
from search_tasks import SearchTask, search_task, small_world

# Of ../rag, which search_tasks has put on the path.
from retriever import WordRetriever  # isort: skip
from wiki_tasks import one_step_tasks, person_in, place_in  # isort: skip

SHARE_RIGHT = 1 / 3


def tiny_tasks() -> tuple[list[SearchTask], list[SearchTask]]:
    """The 32 questions of one step; eight are held out."""
    train, test = one_step_tasks()
    return (
        [search_task(task["question"], task["private"]["answers"]) for task in train],
        [search_task(task["question"], task["private"]["answers"]) for task in test],
    )


PASSAGES = WordRetriever(small_world()[0])
QUESTIONS = [task["question"] for part in one_step_tasks() for task in part]


def conversation(draw: random.Random) -> list[dict[str, str]]:
    """A rollout as the model sees it, whomever it searches."""
    question = draw.choice(QUESTIONS)
    other = question if draw.random() < SHARE_RIGHT else draw.choice(QUESTIONS)
    (passage,) = PASSAGES.search(person := person_in(other), 1)
    return [
        {"role": "user", "content": PROMPT.format(question=question)},
        {"role": "assistant", "content": f"<search> {person} </search>"},
        {"role": "user", "content": f"<information> {passage} </information>"},
        {"role": "assistant", "content": f"<answer> {place_in(passage, question)} </answer>"},
    ]
