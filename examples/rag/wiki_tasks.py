"""The questions and the passages: MuSiQue where it is there, else a small world made here.

A task has ``question`` and, where only its grader sees them, ``answers``: any of them is right.
Passages are texts that begin with a title. In ``data`` beside this file (or in ``RAG_DATA_DIR``)
lie ``train.jsonl``, ``test.jsonl`` and ``passages.jsonl``, as ``prepare_data.py`` makes them.

The small world has 24 people, 12 cities and 6 countries, with 42 passages and 96 questions of one
or two steps, such as "Of which country is the city where Ada Lind was born the capital?"; it is
always the same.
"""

import json
import os
import random
from pathlib import Path
from typing import Any, TypedDict

FOLDER = Path(__file__).parent
NUM_TEST = 16


class QuestionKey(TypedDict):
    """The answers that count as right."""

    answers: list[str]


class Question(TypedDict):
    """A question, and what only its grader sees."""

    question: str
    private: QuestionKey


def data_folder() -> Path | None:
    """Where the real data is; None when there is none.

    Raises:
        FileNotFoundError: ``RAG_DATA_DIR`` names no folder.
    """
    named = os.environ.get("RAG_DATA_DIR")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"RAG_DATA_DIR is {named!r}, which is no folder")
    folder = Path(named) if named else FOLDER / "data"
    return folder if folder.is_dir() else None


def load_tasks() -> tuple[list[Question], list[Question]]:
    """Questions to learn from, and others to measure with."""
    folder = data_folder()
    if folder is None:
        questions = small_world()[1]
        return questions[:-NUM_TEST], questions[-NUM_TEST:]
    train, test = (read_lines(folder / f"{part}.jsonl") for part in ("train", "test"))
    return [_question(line) for line in train], [_question(line) for line in test]


def load_passages() -> list[str]:
    """What can be looked up."""
    folder = data_folder()
    if folder is None:
        return small_world()[0]
    return [str(line["contents"]) for line in read_lines(folder / "passages.jsonl")]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _question(line: dict[str, Any]) -> Question:
    return {"question": line["question"], "private": {"answers": list(line["answers"])}}


# --- the small world ------------------------------------------------------------------------------

FIRST = ["Ada", "Bo", "Cleo", "Dag", "Eva", "Finn", "Gro", "Hal"]
LAST = ["Lind", "Moss", "Reed"]
CITIES = [
    *("Velby", "Tarnow", "Ostra", "Milden", "Kessel", "Arlo"),
    *("Brin", "Dorf", "Elin", "Fjell", "Gant", "Hove"),
]
COUNTRIES = ["Norland", "Sudria", "Estmark", "Westal", "Midora", "Highen"]
WORKS = ["a bridge", "an opera", "a telescope", "a bicycle", "a cookbook", "a lighthouse"]


def small_world() -> tuple[list[str], list[Question]]:
    """Its passages, and questions about them."""
    draw = random.Random(0)
    capitals = dict(zip(CITIES[:6], COUNTRIES, strict=True))
    rivers = {city: f"the {city[:3]}na" for city in CITIES}
    people = [f"{first} {last}" for first in FIRST for last in LAST]
    born = {person: CITIES[(n // 3 + 2 * (n % 3)) % 6] for n, person in enumerate(people)}
    lives = {person: draw.choice(CITIES[6:]) for person in people}
    passages: list[str] = []
    for number, person in enumerate(people):
        made = WORKS[number % len(WORKS)]
        text = f"{person} was born in {born[person]} and made {made}."
        passages.append(f"{person}. {text} Later {person} moved to {lives[person]}.")
    for city in CITIES:
        rank = f"the capital of {capitals[city]}" if city in capitals else "a small town"
        passages.append(f"{city}. {city} is {rank}. It lies on {rivers[city]}.")
    for country in COUNTRIES:
        passages.append(f"{country}. {country} is a country with mountains and lakes.")
    asked: list[tuple[str, str]] = []
    for person in people:
        ask = f"Of which country is the city where {person} was born the capital?"
        asked.append((ask, capitals[born[person]]))
        ask = f"On which river lies the town to which {person} moved?"
        asked.append((ask, rivers[lives[person]]))
        asked.append((f"In which city was {person} born?", born[person]))
        asked.append((f"To which town did {person} move?", lives[person]))
    draw.shuffle(asked)
    return passages, [
        {"question": question, "private": {"answers": [answer]}} for question, answer in asked
    ]


def one_step_tasks(held_out: int = 8) -> tuple[list[Question], list[Question]]:
    """The 32 questions that the passage on one of 16 people answers; some are held out."""
    starts = ("In which", "To which")
    tasks = [
        task
        for task in small_world()[1]
        if task["question"].startswith(starts) and LAST[2] not in task["question"]
    ]
    random.Random(1).shuffle(tasks)
    return tasks[held_out:], tasks[:held_out]


def person_in(question: str) -> str:
    """First and last name of whom such a question is about."""
    words = question.rstrip("?").split()
    start = words.index("was" if "was" in words else "did") + 1
    return " ".join(words[start : start + 2])


def place_in(passage: str, question: str) -> str:
    """What the passage on somebody answers to such a question."""
    words = passage.replace(".", "").split()
    return words[words.index("born") + 2] if question.startswith("In") else words[-1]
