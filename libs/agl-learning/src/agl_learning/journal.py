"""What a run has finished, line by line on the disk, so that a killed run goes on from there."""

import contextlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from agl.errors import ConfigError
from agl_learning.generations import hold_run

Entry = dict[str, Any]


class Journal:
    """Entries in ``journal.jsonl``; each is on the disk when ``append`` returns.

    A last line that a kill cut off is dropped when the journal is opened: what it would have said
    counts as not done. One process at a time has it open.

    Args:
        folder: Of the run; made when it is not there.

    Raises:
        ConfigError: On entering, when another process runs in this folder, or the file is none of
            ours.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self.entries: list[Entry] = []
        self._file: Any = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold_run(self.path.parent))
            self._file = stack.enter_context(self.path.open("a+b"))
            self._file.seek(0)
            self._file.truncate(self._read(self._file))
            self._held = stack.pop_all()
        return self

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The entries that a folder has by now; for reading, whoever writes there.

        Raises:
            ConfigError: There is no journal, or it is none of ours.
        """
        journal = cls(folder)
        try:
            with journal.path.open("rb") as file:
                journal._read(file)
        except OSError as error:
            raise ConfigError(f"{journal.path}: no journal of a run: {error.strerror}") from error
        return journal

    def _read(self, file: BinaryIO) -> int:
        """Read all entries; how many bytes the whole ones take."""
        whole = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
            except ValueError:
                raise ConfigError(
                    f"{self.path}: line {number} is no JSON; this is no journal of a run, or it "
                    "was changed. Give another run_dir"
                ) from None
            self.entries.append(entry)
            whole += len(line)
        return whole

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._held.close()

    def append(self, event: str, **values: Any) -> Entry:
        """Add an entry; it is on the disk when this returns."""
        entry = {"event": event, **values}
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)
        return entry

    def last(self, event: str, **values: Any) -> Entry | None:
        """The newest entry of this event with these values, or None."""
        return next(iter(reversed(self.all(event, **values))), None)

    def all(self, event: str, **values: Any) -> list[Entry]:
        """All entries of this event with these values, in order."""
        wanted = {"event": event, **values}.items()
        return [entry for entry in self.entries if wanted <= _hashable(entry).items()]


def _hashable(entry: Entry) -> dict[str, Any]:
    """Only plain values: sets of items cannot hold others, and nobody asks for them."""
    return {
        name: value
        for name, value in entry.items()
        if isinstance(value, str | int | float | bool | None)
    }
