"""Notes of trainings that somebody else does, and bills: each is on the disk before the next act.

A run that is killed reads here what it has asked for, so that nothing is asked, and paid, twice.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_runs.files import make_private_folder

Note = dict[str, Any]


class Notes:
    """Lines of JSON in ``notes.jsonl`` of a run's folder, which this process holds.

    A last one that a kill cut off counts as not written.

    Raises:
        ConfigError: Another line cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes.jsonl"
        lines = self.path.read_bytes().splitlines(True) if self.path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        try:
            self.entries: list[Note] = [json.loads(line) for line in whole]
        except ValueError as error:
            raise ConfigError(
                f"{self.path}: expected a JSON object per line; this cannot be read ({error!r}). "
                "It says what was paid for: put it back from a copy, or give another run_dir"
            ) from error
        if len(whole) < len(lines):
            os.truncate(self.path, sum(map(len, whole)))

    def append(self, event: str, **values: Any) -> Note:
        """Add one; it is on the disk when this returns.

        Raises:
            OSError: The disk is full or fails; nothing of it stands there.
        """
        note = {"event": event, **values}
        make_private_folder(self.path.parent)
        with self.path.open("ab", buffering=0) as file:
            whole = file.seek(0, os.SEEK_END)
            try:
                line = json.dumps(note).encode() + b"\n"
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, "no space left for a note", str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise
        self.entries.append(note)
        return note

    def all(self, event: str, **values: Any) -> list[Note]:
        """Those of this event with these values, in order."""
        wanted = {"event": event, **values}.items()
        return [note for note in self.entries if note.items() >= wanted]

    def last(self, event: str, **values: Any) -> Note | None:
        """The newest of them, or None."""
        return next(reversed(self.all(event, **values)), None)
