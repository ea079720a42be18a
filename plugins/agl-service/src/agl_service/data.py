"""The data of a user: files of tasks, which come in pieces, and the ids that name two of them.

A file lies once in ``files``, under the digest of its content; ``data`` has a record for each id.
"""

import hashlib
import json
import time
from pathlib import Path
from threading import Lock
from typing import Any

from agl.errors import DatasetError, UnknownRecordError
from agl_runs.files import make_private_folder, write_whole

PIECE_BYTES = 2**22
_lock = Lock()


def check_tasks(file: Path, name: str) -> tuple[str, int]:
    """Read a file of JSON lines, each a task with a ``question``; blank lines do not count.

    Returns:
        The digest of its content, and how many tasks it has.

    Raises:
        DatasetError: A line is none, or there is no task; the message has ``name`` and the line.
    """
    digest, tasks = hashlib.sha256(), 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            digest.update(line)
            if line.strip():
                _check_task(line, f"{name}, line {number}")
                tasks += 1
    if not tasks:
        raise DatasetError(f"{name}: it has no tasks")
    return digest.hexdigest(), tasks


def _check_task(line: bytes, where: str) -> None:
    try:
        if json.loads(line.decode("utf-8-sig"))["question"] is not None:
            return
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise DatasetError(f"{where}: expected JSON with a 'question', got {line[:80]!r}")


def file_of(user: Path, digest: str) -> Path:
    """Where a file is, or what has come of it; ``user`` is the folder of its user."""
    return user / "files" / f"{digest}.jsonl"


def add_piece(user: Path, digest: str, offset: int, piece: bytes) -> int:
    """Add a piece if all before it is there, and nothing behind; how many bytes are there now."""
    make_private_folder(user / "files")
    with _lock, file_of(user, digest).open("ab") as out:
        if out.tell() == offset:
            out.write(piece)
        return out.tell()


def add_data(user: Path, train: str, test: str | None, name: str | None) -> str:
    """Name uploaded files, by default after their content; the id.

    Raises:
        DatasetError: A file was refused, and is removed; see ``check_tasks``.
    """
    files = {"train": train, **({"test": test} if test else {})}
    counts = {f"{what}_tasks": _check_file(user, digest, what) for what, digest in files.items()}
    name = name or hashlib.sha256(" ".join(files.values()).encode()).hexdigest()[:16]
    record = {"train": train, "test": test, "created": time.time(), "test_tasks": 0, **counts}
    with _lock:
        write_whole(user / "data" / f"{name}.json", json.dumps(record))
    return name


def _check_file(user: Path, digest: str, what: str) -> int:
    try:
        found, tasks = check_tasks(file_of(user, digest), f"{what} file")
        if found != digest:
            raise DatasetError(f"{what} file: it changed while it was uploaded; upload it again")
        return tasks
    except FileNotFoundError:
        raise DatasetError(f"{what} file: {digest} was not uploaded") from None
    except DatasetError:
        file_of(user, digest).unlink()
        raise


def all_data(user: Path) -> dict[str, dict[str, Any]]:
    """Id -> its record."""
    records = sorted((user / "data").glob("*.json"))
    return {one.stem: json.loads(one.read_text("utf-8")) for one in records}


def data_of(user: Path, name: str) -> dict[str, Any]:
    """The record of an id, else an ``UnknownRecordError``."""
    if (record := all_data(user).get(name)) is None:
        raise UnknownRecordError(f"you have no data {name!r}; upload it")
    return record


def delete_data(user: Path, name: str) -> None:
    """Forget an id, and files that no other one names."""
    with _lock:
        left = data_of(user, name)
        (user / "data" / f"{name}.json").unlink()
        used = {one[what] for one in all_data(user).values() for what in ("train", "test")}
        for digest in {left["train"], left["test"]} - used - {None}:
            file_of(user, digest).unlink(missing_ok=True)
