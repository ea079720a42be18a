"""Versions of a model, and files and folders that are there whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORD = "agl_version.json"
"""In the folder of a version: what ``Version`` holds."""


@dataclass(frozen=True)
class Version:
    """One state of the model that is trained."""

    number: int
    """0 is the model that the run was given."""
    ref: str
    """Where it is: a folder, a name on a hub, an id at a provider. It outlives the process."""
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the training that made it; JSON values."""


def publish(partial: Path, folder: Path) -> None:
    """Give a finished folder its name, when all of it is on the disk.

    After a kill at any moment ``folder`` is whole or not there. One that is there already stays:
    its maker had finished it.
    """
    for path in sorted(partial.rglob("*")):
        _sync(path)
    _sync(partial)
    if folder.exists():
        shutil.rmtree(partial)
        return
    os.replace(partial, folder)
    _sync(folder.parent)


def write_file(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(text, encoding="utf-8")
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, as ``write_file`` does."""
    write_file(path, "".join(json.dumps(record) + "\n" for record in records))


def write_record(folder: Path, version: Version) -> None:
    """Put what is known of a version in its folder."""
    values = {"number": version.number, "metrics": version.metrics}
    (folder / RECORD).write_text(json.dumps(values, indent=2) + "\n")


def read_record(folder: Path) -> Version | None:
    """The version in a folder; None when there is none."""
    try:
        values = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        return None
    return Version(values["number"], str(folder), values["metrics"])


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
