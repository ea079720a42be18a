"""The tasks, as ``prepare_data.py`` wrote them, and when an answer is right."""

import re
from pathlib import Path
from typing import Any, TypedDict

from env_var import data_folder

TOLERANCE = 0.05
PARTS = ("train", "test")


class ChartKey(TypedDict):
    """Answers that are right."""

    answers: list[str]


class ChartTask(TypedDict):
    """A question about a chart, and what only its grader sees."""

    id: str
    question: str
    image: str
    """Path of the picture."""
    private: ChartKey


def parquet_file(folder: Path, part: str) -> Path:
    """Where the tasks of a part are."""
    return folder / f"{part}_chartqa.parquet"


def load_tasks() -> tuple[list[ChartTask], list[ChartTask]]:
    """Tasks to train with and to test with.

    Raises:
        FileNotFoundError: Nothing has been prepared.
    """
    train, test = (_read(data_folder(), part) for part in PARTS)
    return train, test


def _read(folder: Path, part: str) -> list[ChartTask]:
    import pyarrow.parquet

    path = parquet_file(folder, part)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there. Run `python prepare_data.py`, or set CHARTQA_DATA_DIR to the "
            "folder that it wrote to"
        )
    records: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return [
        {
            "id": record["id"],
            "question": record["question"],
            "image": str(folder / record["image"]),
            "private": {"answers": record["answers"]},
        }
        for record in records
    ]


def find_answer(text: str) -> str:
    """The last ``<answer>`` in what a model wrote; nothing where there is none."""
    found = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else ""


def relaxed_accuracy(answer: str, right: list[str]) -> float:
    """ChartQA's measure: 1 for a number within 5 % of a right one, or for the same text; else 0.

    Signs of currencies, percent signs and thousands' commas do not count, nor do capitals.
    """
    if not right:
        raise ValueError("expected at least one right answer, got none")
    return float(any(_is_right(answer, one) for one in right))


def _is_right(answer: str, right: str) -> bool:
    given, wanted = _number(answer), _number(right)
    if given is not None and wanted is not None:
        return abs(given - wanted) <= TOLERANCE * abs(wanted)
    return answer.strip().casefold() == right.strip().casefold()


def _number(text: str) -> float | None:
    plain = re.sub(r"[\s,%$€£]", "", text)
    return float(plain) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", plain) else None
