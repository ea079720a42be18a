"""The questions: those of Search-R1 where they are there, else the small world of ``../rag``.

``data/train.jsonl`` and ``data/test.jsonl`` (in ``SEARCH_R1_DATA_DIR`` or beside this file) have
lines with ``question`` and ``golden_answers``, a list; ``data_process.sh`` gets them.
"""

import os
import sys
from pathlib import Path
from typing import TypedDict

FOLDER = Path(__file__).parent
# After this folder, so that what both have is taken from here.
sys.path.append(str(FOLDER.parent / "rag"))

from wiki_tasks import NUM_TEST, read_lines, small_world  # noqa: E402


class SearchKey(TypedDict):
    """The answers that count as right."""

    golden_answers: list[str]


class SearchTask(TypedDict):
    """A question, and what only its grader sees."""

    question: str
    private: SearchKey


def data_folder() -> Path | None:
    """Where the real data is; None when there is none.

    Raises:
        FileNotFoundError: ``SEARCH_R1_DATA_DIR`` names no folder.
    """
    named = os.environ.get("SEARCH_R1_DATA_DIR")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"SEARCH_R1_DATA_DIR is {named!r}, which is no folder")
    folder = Path(named) if named else FOLDER / "data"
    return folder if folder.is_dir() else None


def load_tasks() -> tuple[list[SearchTask], list[SearchTask]]:
    """Questions to learn from, and others to measure with."""
    folder = data_folder()
    if folder is None:
        made = [search_task(q["question"], q["private"]["answers"]) for q in small_world()[1]]
        return made[:-NUM_TEST], made[-NUM_TEST:]
    train, test = (
        [search_task(line["question"], line["golden_answers"]) for line in read_lines(path)]
        for path in (folder / "train.jsonl", folder / "test.jsonl")
    )
    return train, test


def search_task(question: str, answers: list[str]) -> SearchTask:
    """A question with its answers where the agent does not get them."""
    return {"question": question, "private": {"golden_answers": list(answers)}}
