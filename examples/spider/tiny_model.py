"""A language model small enough to train on a CPU, which has seen a little SQL, most of it wrong.

Before the run it is taught, in seconds, what counting queries look like: a third of those it sees
count the rows that the question asks for, the others those of any table. The verdicts that it sees
are drawn at random. So it answers in the right form and mostly wrong, as larger models do at first
with harder questions, and reinforcement learning has something to find.
"""

import random

from sql_agent import CHECK_PROMPT, REWRITE_PROMPT, WRITE_PROMPT
from sql_execution import read_schema
from sql_tasks import SqlTask, databases_of

SHARE_RIGHT = 1 / 3
VERDICTS = ["THE QUERY IS CORRECT", "THE QUERY IS INCORRECT"]

WORDS = ["singer", "concert", "book", "member", "customer", "product", "student", "course"]


def easy_tasks(tasks: list[SqlTask]) -> list[SqlTask]:
    """Those that count the rows of a table: a word of the question says of which."""
    return [task for task in tasks if _counts_a_table(task["private"]["query"])]


def _counts_a_table(query: str) -> bool:
    return query.startswith("SELECT count(*)") and "WHERE" not in query


def conversation(tasks: list[SqlTask], draw: random.Random) -> list[dict[str, str]]:
    """A prompt of one of three kinds for one of the tasks, with an answer."""
    queries, task = [task["private"]["query"] for task in tasks], draw.choice(tasks)
    answer = task["private"]["query"] if draw.random() < SHARE_RIGHT else draw.choice(queries)
    known = {"schema": read_schema(databases_of(task)[0]), "question": task["question"]}
    error = f"Error: OperationalError: no such table: {draw.choice(WORDS)}"
    ran = {
        "query": draw.choice(queries),
        "execution": draw.choice([f"count(*)\n{draw.randrange(50)}", error]),
        "feedback": draw.choice(VERDICTS),
    }
    prompt, reply = draw.choice(
        [
            (WRITE_PROMPT.format(**known), answer),
            (CHECK_PROMPT.format(**known, **ran), draw.choice(VERDICTS)),
            (REWRITE_PROMPT.format(**known, **ran), answer),
        ]
    )
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
