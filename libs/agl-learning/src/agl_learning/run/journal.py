"""What a run has finished, line by line on the disk, so that a killed run goes on from there."""

import contextlib
import json
import logging
import os
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from agl.errors import ConfigError
from agl_learning.run.generations import Generation, hold_run, read_generation, write_generation
from agl_runs.folders import FILE

logger = logging.getLogger("agl.learning")

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
        self._found: defaultdict[tuple[str, str | None], list[Entry]] = defaultdict(list)
        """By event, and by event and key: each step asks, and journals get long."""
        self._file: Any = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold_run(self.path.parent))
            # Without a buffer, which would write later what was said to have failed.
            self._file = stack.enter_context(self.path.open("a+b", buffering=0))
            entries, whole = _read(self.path)
            self._add(entries)
            self._file.truncate(whole)
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
            journal._add(_read(journal.path)[0])
        except OSError as error:
            raise ConfigError(f"{journal.path}: no journal of a run: {error.strerror}") from error
        return journal

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._held.close()

    def append(self, event: str, **values: Any) -> Entry:
        """Add an entry; it is on the disk when this returns.

        Raises:
            OSError: The disk is full or fails; nothing of the entry stands there.
        """
        entry = {"event": event, **values}
        left, whole = json.dumps(entry).encode() + b"\n", self._file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(whole)
            raise
        self._add([entry])
        return entry

    def _add(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self._found[entry["event"], None].append(entry)
            if isinstance(key := entry.get("key"), str):
                self._found[entry["event"], key].append(entry)

    def last(self, event: str, **values: Any) -> Entry | None:
        """The newest entry of this event with these values, or None."""
        return next(iter(reversed(self.all(event, **values))), None)

    def all(self, event: str, **values: Any) -> list[Entry]:
        """All entries of this event with these values, in order."""
        key = values.get("key")
        entries = self._found.get((event, key if isinstance(key, str) else None), [])
        return [
            entry
            for entry in entries
            if all(name in entry and entry[name] == value for name, value in values.items())
        ]


def mend_generation(folder: Path) -> None:
    """Write ``run.json`` again, as the journal has it, where it is damaged or gone.

    Raises:
        ConfigError: It is damaged, and the journal has no start of the run; or that is damaged.
    """
    why = "is gone"
    try:
        if read_generation(folder) is not None:
            return
    except ConfigError as error:
        why = "is damaged"
        begun = _last_start(folder)
        if begun is None:
            raise error
    else:
        begun = _last_start(folder)
    if begun is not None:
        logger.warning("%s %s; it is written again, as the journal has it", folder / FILE, why)
        write_generation(folder, begun)


def _last_start(folder: Path) -> Generation | None:
    begun = [entry["start"] for entry in read_entries(folder) if entry["event"] == "begun"]
    return Generation(**begun[-1]) if begun else None


def read_entries(folder: Path) -> list[Entry]:
    """The entries of a run's journal, for a look before it goes on; none where it has none.

    Raises:
        ConfigError: It is damaged before its last line, or none of ours.
    """
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    entries, whole = _read(path)
    if whole < path.stat().st_size:
        logger.warning(
            "%s: its last line is cut off, as by a kill or a full disk; what it would have said "
            "counts as not done",
            path,
        )
    return entries


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries, and how many bytes they are."""
    entries: list[Entry] = []
    whole = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "event" not in entry:
            raise ConfigError(
                f"{path}: line {number} is damaged: {line[:60]!r}. What it said of the run is "
                "unknown, and so is what was trained since. Put the file back from a copy; or "
                f"keep the first {number - 1} lines only, and what came after is done again from "
                "the checkpoint before (steps up to that one whose lines go cannot be replayed any "
                "more); or give another run_dir"
            )
        entries.append(cast("Entry", entry))
        whole += len(line)
    return entries, whole
