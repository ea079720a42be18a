"""Processes of a fresh interpreter."""

import re
import signal
import subprocess
import sys
from typing import Any

AGL = ("-c", "from agl.cli import main; main()")
"""Words that make a Python the command ``agl``."""


def python(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """``python *words`` to its end, its output captured as text."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, **{"capture_output": True, "text": True, **options})


def started(*words: object, **options: Any) -> "subprocess.Popen[bytes]":
    """``python *words``, with pipes to write to it and to read what it says."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *map(str, words)], **{**pipes, **options})


class Serving:
    """A running ``agl`` command; ``url`` is what it said it serves at.

    Args:
        words: Of the command, its name first.
        before: What a shell does that then becomes the command.
    """

    def __init__(self, *words: str, before: str = "", **options: Any) -> None:
        shell = ["sh", "-c", f'{before} exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*shell, sys.executable, *AGL, *words], stderr=subprocess.PIPE, text=True, **options
        )
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(rf"agl {words[0]}: (http://\S+)", line):
                self.url = found[1]
                return
        raise AssertionError(f"it did not start: {self.lines}")

    def end(self, number: int | None = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal if one is given, and wait; exit code and all that it wrote."""
        if number is not None:
            self.process.send_signal(number)
        rest = self.process.communicate(timeout=250)[1]
        return self.process.returncode, "".join(self.lines) + rest
