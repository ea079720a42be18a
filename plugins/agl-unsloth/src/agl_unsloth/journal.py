"""What a run has finished, line by line on the disk, so that a killed run goes on from there."""

import contextlib
import json
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agl.errors import ConfigError

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

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        self._lock()
        _open.add(self)
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
            except ValueError:
                self._file.close()
                raise ConfigError(
                    f"{self.path}: line {number} is no JSON; this is no journal of a run, or it "
                    "was changed. Give another run_dir"
                ) from None
            self.entries.append(entry)
            whole += len(line)
        self._file.truncate(whole)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        _open.discard(self)
        # Also where a process that was forked a moment ago has not closed its copy yet.
        self._flock("LOCK_UN")
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            self._flock("LOCK_EX", "LOCK_NB")
        except OSError:
            self._file.close()
            raise ConfigError(
                f"{str(self.path.parent)!r} is in use by another run. Wait for its end, or "
                "give another run_dir"
            ) from None

    def _flock(self, *operations: str) -> None:
        with contextlib.suppress(ImportError):  # Windows has no fcntl; there nothing guards
            import fcntl

            fcntl.flock(self._file, sum(getattr(fcntl, name) for name in operations))

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


_open: "weakref.WeakSet[Journal]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A runner that was forked later and outlives a killed run must not keep its folder locked.
    for journal in list(_open):
        journal.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _hashable(entry: Entry) -> dict[str, Any]:
    """Only plain values: sets of items cannot hold others, and nobody asks for them."""
    return {
        name: value
        for name, value in entry.items()
        if isinstance(value, str | int | float | bool | None)
    }
