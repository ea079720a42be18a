"""The data of a user: files of tasks, which come in pieces, and the ids that name two of them.

A file lies once in ``files``, under the digest of its content; ``data`` has a record for each id.
"""

import hashlib
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from agl.errors import AglError, DatasetError, UnknownRecordError
from agl.utils.json_values import copy_of
from agl_runs.files import make_private_folder, write_whole
from agl_sqlite.lockfile import lock_of

PIECE_BYTES = 2**22


@dataclass(frozen=True)
class DataRecord:
    """The digests of the files that an id names, and how many tasks they have."""

    train: str
    train_tasks: int
    created: float
    test: str | None = None
    test_tasks: int = 0
    error: str = ""
    """Why the record cannot be read."""


_check_record = TypeAdapter(DataRecord).validate_json


def check_tasks(file: Path, name: str, unit: str = "line") -> tuple[str, int]:
    """Read a file of JSON lines, each a task with a ``question``; blank lines do not count.

    Returns:
        The digest of its content, and how many tasks it has.

    Raises:
        DatasetError: A line is none, with ``name``, ``unit`` and its number; or there is no task.
    """
    digest, tasks = hashlib.sha256(), 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            digest.update(line)
            if line.strip():
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                _check_task(line, encoding, f"{name}, {unit} {number}")
                tasks += 1
    if not tasks:
        raise DatasetError(f"{name}: it has no tasks")
    return digest.hexdigest(), tasks


def _check_task(line: bytes, encoding: str, where: str) -> None:
    try:
        task = json.loads(line.decode(encoding))
        if task["question"] is not None:
            copy_of(task, f"{where}: the task")  # as the store of a job does
            return
    except AglError as error:
        raise DatasetError(str(error)) from None
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise DatasetError(f"{where}: expected JSON with a 'question', got {line[:80]!r}")


def _file_of(user: Path, digest: str) -> Path:
    """Where a file is, or what has come of it; ``user`` is the folder of its user."""
    return user / "files" / f"{digest}.jsonl"


def add_piece(user: Path, digest: str, offset: int, piece: bytes) -> int:
    """Add a piece if all before it is there, and nothing behind; how many bytes are there now."""
    make_private_folder(user / "files")
    with lock_of(user), _file_of(user, digest).open("ab") as out:
        if out.tell() == offset:
            out.write(piece)
        return out.tell()


def add_data(user: Path, train: str, test: str | None, name: str | None) -> str:
    """Name uploaded files, by default after their content; the id, which may be given anew.

    Raises:
        DatasetError: A file was refused, and is removed; see ``check_tasks``.
    """
    train_tasks = _check_file(user, train, "train")
    test_tasks = _check_file(user, test, "test") if test else 0
    name = name or hashlib.sha256(f"{train} {test or ''}".strip().encode()).hexdigest()[:16]
    record = DataRecord(train, train_tasks, time.time(), test, test_tasks)
    with lock_of(user):
        for digest in filter(None, (train, test)):
            if not _file_of(user, digest).exists():
                raise DatasetError("its file was deleted meanwhile; upload it again")
        file = _record_file(user, name)
        before = _read_record(file) if file.exists() else record
        write_whole(file, json.dumps(asdict(record)))
        _delete_unnamed(user, before)
    return name


def _check_file(user: Path, digest: str, what: str) -> int:
    file = _file_of(user, digest)
    try:
        found, tasks = check_tasks(file, f"{what} file")
        if found != digest:
            raise DatasetError(f"{what} file: it changed while it was uploaded; upload it again")
        return tasks
    except FileNotFoundError:
        raise DatasetError(f"{what} file: {digest} was not uploaded") from None
    except DatasetError:
        file.unlink(missing_ok=True)
        raise


def _record_file(user: Path, name: str) -> Path:
    return user / "data" / f"{name}.json"


def _read_record(file: Path) -> DataRecord:
    try:
        return _check_record(file.read_bytes())
    except ValueError:
        damaged = f"{file} is damaged; restore that file, or upload the data again"
        return DataRecord("", 0, file.stat().st_mtime, error=damaged)


def all_data(user: Path) -> dict[str, DataRecord]:
    """Id -> its record."""
    with lock_of(user):
        return {one.stem: _read_record(one) for one in sorted((user / "data").glob("*.json"))}


def data_of(user: Path, name: str) -> DataRecord:
    """The record of an id, else an ``UnknownRecordError``."""
    try:
        return _read_record(_record_file(user, name))
    except FileNotFoundError:
        raise UnknownRecordError(f"you have no data {name!r}; upload it") from None


def link_files(user: Path, record: DataRecord, folder: Path) -> dict[str, str]:
    """Link the files of a record into a job's folder: a job keeps tasks whose id is deleted.

    Returns:
        What the configuration of a run has: ``train``, and ``val`` if there are test tasks.

    Raises:
        DatasetError: They were deleted since the record was read.
    """
    make_private_folder(folder)
    linked: dict[str, str] = {}
    for name, digest in (("train", record.train), ("val", record.test)):
        if digest:
            linked[name] = str(folder / f"{name}.jsonl")
            try:
                os.link(_file_of(user, digest), linked[name])
            except FileExistsError:  # the server was killed, and is asked again
                continue
            except FileNotFoundError:
                shutil.rmtree(folder)
                raise DatasetError("the data was deleted meanwhile; upload it again") from None
    return linked


def delete_data(user: Path, name: str) -> None:
    """Forget an id, and files that no other one names."""
    with lock_of(user):
        left = data_of(user, name)
        _record_file(user, name).unlink()
        _delete_unnamed(user, left)


def _delete_unnamed(user: Path, left: DataRecord) -> None:
    others = all_data(user).values()
    used = {digest for one in others for digest in (one.train, one.test)}
    if not any(one.error for one in others):  # which may name them
        for digest in {left.train, left.test} - used - {None, ""}:
            _file_of(user, digest).unlink(missing_ok=True)
