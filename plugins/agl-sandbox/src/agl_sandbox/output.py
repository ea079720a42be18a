"""What processes behind a wall print: copied into the runner's log, which they never hold."""

import asyncio
import os

from agl.utils.logs import tell
from agl.utils.secrets import hide
from agl.utils.text import printable

MOST_BYTES = 100_000
"""How much of what one process prints is copied; the rest is read and left out."""


class Output:
    """A pipe in the place of standard output and error; on a running loop.

    Args:
        name: Begins each line, so that no line passes for one of the runner's own.
    """

    def __init__(self, name: str) -> None:
        self._name, self._line, self._room = name, b"", MOST_BYTES
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.writing = os.fdopen(writing, "wb", buffering=0)
        """The end for the process; close it here as soon as the process has it."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading, self._copy)

    def close(self) -> None:
        """Copy what is left; its writers have ended, or are not waited for."""
        self.writing.close()
        while self._room and self._copy():
            pass
        if not self._loop.is_closed():
            self._loop.remove_reader(self._reading)
        os.close(self._reading)

    def _copy(self) -> bool:
        """Copy what has come; whether there may be more."""
        try:
            chunk = os.read(self._reading, 65536)
        except BlockingIOError:
            return False
        had_room = self._room > 0
        kept = chunk[: self._room]
        self._room -= len(kept)
        *lines, self._line = (self._line + kept).split(b"\n")
        if not chunk and not self._loop.is_closed():  # all who could write have ended
            self._loop.remove_reader(self._reading)
        if self._line and not (chunk and self._room):
            lines.append(self._line)
            self._line = b""
        if had_room and not self._room:
            lines.append(b"(what it prints after %d bytes is left out)" % MOST_BYTES)
        if lines:
            texts = (printable(hide(line.decode(errors="replace"))) for line in lines)
            tell("\n".join(f"{self._name} | {text}" for text in texts))
        return bool(chunk)
