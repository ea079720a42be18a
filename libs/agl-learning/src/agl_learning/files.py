"""Files that are there whole or not at all, and on the disk when a function returns."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agl.utils.files import make_private_folder


def write_whole(path: Path, text: str) -> None:
    """Write a text file; a kill leaves what was there before, or all of it."""
    make_private_folder(path.parent)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, "utf-8")
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, as ``write_whole`` does."""
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
