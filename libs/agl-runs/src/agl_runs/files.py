"""Files that are whole or not there, and folders that only their owner can read."""

import os
from pathlib import Path

from agl.errors import ConfigError


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the missing ones above it, for this user alone.

    One that is there stays as it is: whoever made it may have opened it to others.

    Raises:
        ConfigError: This user may not make it.
        OSError: It cannot be made.
    """
    if not folder.is_dir():
        make_private_folder(folder.parent)
        try:
            folder.mkdir(0o700, exist_ok=True)
        except PermissionError as error:
            raise ConfigError(
                f"{str(folder)!r}: this folder cannot be made ({error.strerror}). Work in a folder "
                "that you may write, or give another one (run_dir)"
            ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a text file; a kill leaves what was there before, or all of it."""
    make_private_folder(path.parent)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, "utf-8")
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
