"""Processes of a fresh interpreter."""

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
