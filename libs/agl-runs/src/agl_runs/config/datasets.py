"""Tasks from files: JSON, JSONL, CSV and Parquet."""

import csv
import json
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from agl.errors import DatasetError, install_line


def load_dataset(path: str | Path) -> list[Any]:
    """Read all tasks of a file; what it is, its ending says.

    ``.json`` holds one array; ``.jsonl`` (or ``.ndjson``) one JSON value per line, blank lines
    aside; ``.csv`` a line of column names and then one task per line, a dict of texts;
    ``.parquet`` one task per row, a dict. Parquet needs the extra ``agl-core[parquet]``.

    Args:
        path: The file, UTF-8 where it is text.

    Returns:
        The tasks, at least one, in the file's order.

    Raises:
        DatasetError: The file is missing, empty, of another format, or has a line that cannot be
            read.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if not path.is_file():
        raise DatasetError(f"{path}: no such dataset file")
    if reader is None:
        raise DatasetError(
            f"{path}: cannot read {path.suffix or 'a file without an ending'!r}; "
            f"a dataset is one of {', '.join(_READERS)}"
        )
    try:
        tasks = reader(path)
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not tasks:
        raise DatasetError(f"{path}: the dataset has no tasks")
    return tasks


def _read_json(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        more = ". One value per line is JSONL: name the file .jsonl"
        hint = more if error.msg == "Extra data" else ""
        raise DatasetError(f"{path}, line {error.lineno}: not JSON: {error.msg}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, list):
        found = "an object" if isinstance(value, dict) else reprlib.repr(value)
        raise DatasetError(f"{path}: expected an array of tasks, got {found}")
    return cast("list[Any]", value)


def _read_jsonl(path: Path) -> list[Any]:
    tasks: list[Any] = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                tasks.append(json.loads(line))
            except (ValueError, RecursionError) as error:  # too many digits or brackets, too
                why = getattr(error, "msg", error)
                raise DatasetError(f"{path}, line {number}: not JSON: {why}") from None
    if len(tasks) == 1 and isinstance(tasks[0], list):
        raise DatasetError(f"{path}: one line, which is an array of tasks. Name the file .json")
    return tasks


def _read_csv(path: Path) -> list[Any]:
    tasks: list[Any] = []
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            columns: list[str] = next(reader, cast("list[str]", []))
            if len(set(columns)) < len(columns):
                raise DatasetError(f"{path}, line 1: a column name stands twice")
            for row in reader:
                if not row:
                    continue
                if len(row) != len(columns):
                    raise DatasetError(
                        f"{path}, line {reader.line_num}: expected {len(columns)} values, "
                        f"got {len(row)}"
                    )
                tasks.append(dict(zip(columns, row, strict=True)))
        except csv.Error as error:
            raise DatasetError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    return tasks


def _read_parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore
    except ImportError:
        raise DatasetError(
            f"{path}: reading Parquet needs 'pyarrow', which is not installed. "
            f"Run: {install_line('agl-core[parquet]')}"
        ) from None
    try:
        return parquet.read_table(path).to_pylist()  # pyright: ignore
    except ArrowException as error:  # pyright: ignore
        first_line = str(cast("Exception", error)).partition("\n")[0]
        raise DatasetError(f"{path}: not Parquet: {first_line}") from None


_READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
