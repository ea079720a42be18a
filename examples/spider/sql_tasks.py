"""The tasks: Spider where it is there, else the small set of this folder.

``VERL_SPIDER_DATA_DIR`` names the folder with Spider; without it, ``data`` beside this file is used
if it exists. Otherwise the databases are made on the spot (``make_databases.py``): 68 questions
about four databases to learn from, 34 about two others to measure with.
"""

import json
import os
from pathlib import Path
from typing import Any, TypedDict

from make_databases import make_databases

FOLDER = Path(__file__).parent
HELD_OUT_DATABASES = ("flights", "pets")
SPIDER_TRAIN = ("train_spider.parquet", "train_spider.json")
SPIDER_VAL = ("test_dev_500.parquet", "dev.parquet", "dev.json")


class SqlKey(TypedDict):
    """The query that answers the question."""

    query: str


class SqlTask(TypedDict):
    """A question, and what only its grader sees. ``folder`` has ``database/<db_id>/*.sqlite``."""

    db_id: str
    question: str
    folder: str
    private: SqlKey


def load_tasks() -> tuple[list[SqlTask], list[SqlTask]]:
    """Train and validation tasks.

    Raises:
        FileNotFoundError: ``VERL_SPIDER_DATA_DIR`` is set, and Spider is not there.
    """
    named = os.environ.get("VERL_SPIDER_DATA_DIR")
    if named or (FOLDER / "data").is_dir():
        folder = Path(named or FOLDER / "data").resolve()
        return _read_first(folder, SPIDER_TRAIN), _read_first(folder, SPIDER_VAL)
    return load_small_tasks()


def load_small_tasks(folder: Path | None = None) -> tuple[list[SqlTask], list[SqlTask]]:
    """The tasks of this folder; databases that are missing are made."""
    databases = make_databases(folder) if folder else make_databases()
    lines = (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [_task(json.loads(line), databases) for line in lines]
    train = [task for task in tasks if task["db_id"] not in HELD_OUT_DATABASES]
    return train, [task for task in tasks if task["db_id"] in HELD_OUT_DATABASES]


def databases_of(task: SqlTask) -> list[Path]:
    """The databases that a query must be right in; the first is the one that the agent sees.

    Raises:
        FileNotFoundError: There is none.
    """
    name = task["db_id"]
    # Spider has the test set's databases in a folder of their own.
    for kind in ("database", "test_database"):
        found = sorted(Path(task["folder"], kind, name).glob("*.sqlite"))
        if found:
            # The one named like its folder first: the others are its variants.
            return sorted(found, key=lambda path: path.stem != name)
    raise FileNotFoundError(f"no database/{name}/*.sqlite in {task['folder']}")


def _read_first(folder: Path, names: tuple[str, ...]) -> list[SqlTask]:
    for name in names:
        if (folder / name).is_file():
            return _read(folder / name)
    raise FileNotFoundError(
        f"Spider is expected in {folder}, which has none of {', '.join(names)}. Set "
        "VERL_SPIDER_DATA_DIR to the folder that has them, or unset it to use the small set"
    )


def _read(path: Path) -> list[SqlTask]:
    if path.suffix == ".json":
        records = json.loads(path.read_text(encoding="utf-8"))
    else:
        import pyarrow.parquet

        records = pyarrow.parquet.read_table(path).to_pylist()
    return [_task(record, path.parent) for record in records]


def _task(record: dict[str, Any], folder: Path) -> SqlTask:
    return {
        "db_id": record["db_id"],
        "question": record["question"],
        "folder": str(folder),
        "private": {"query": record["query"]},
    }
