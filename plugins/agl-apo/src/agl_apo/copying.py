"""Whether a prompt copies training items, which helps with them and with nothing else."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

WINDOW = 6
"""So many words in a row, taken from a task, are a copy."""
VALUES = 3
"""So many values of one task on one line are a copy."""


def copied_tasks(text: str, seed: str, tasks: Sequence[Any]) -> list[int]:
    """Positions of the tasks that ``text`` copies from and ``seed`` does not.

    A copy is a run of six words of a task, or three different values of one task (of three
    characters or more, and not the same in every task) on one line.
    """
    lines = [_words(line) for line in text.splitlines()]
    known = _words(seed)
    values = [_values(task) for task in tasks]
    common = set.intersection(*values) if len(values) > 1 else set[str]()
    return [
        number
        for number, task in enumerate(tasks)
        if _has_run(_words(text), known, task)
        or any(
            sum(one in line and one not in known for one in values[number] - common) >= VALUES
            for line in lines
        )
    ]


def _has_run(text: str, known: str, task: Any) -> bool:
    for leaf in _leaves(task):
        words = _words(leaf).split()
        for start in range(len(words) - WINDOW + 1):
            run = f" {' '.join(words[start : start + WINDOW])} "
            if run in text and run not in known:
                return True
    return False


def _values(task: Any) -> set[str]:
    words = {_words(leaf) for leaf in _leaves(task)}
    return {value for value in words if len(value.strip()) >= 3}


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _words(text: str) -> str:
    """The words, lower case, one blank between and around them."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} "
