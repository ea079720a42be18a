"""Other checkouts of this repository beside this one, for benchmarks that compare them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def checkout(text: str) -> tuple[str, Path]:
    """The name and the folder of ``--tree NAME=FOLDER``."""
    name, _, folder = text.partition("=")
    return name, Path(folder).resolve()


def run_from(folder: Path, command: Sequence[str]) -> list[str]:
    """The command, with the sources of a checkout first on Python's path.

    A checkout with an environment ``.venv`` uses that one's Python, as entry points are those of
    what is installed.
    """
    sources = [folder / "core/src", *sorted(folder.glob("libs/*/src"))]
    sources += sorted(folder.glob("plugins/*/src"))
    if not sources[0].is_dir():
        raise SystemExit(f"{folder}: no checkout of this repository; core/src is not there")
    own = folder / ".venv/bin/python"
    if command[0] == sys.executable and own.exists():
        command = [str(own), *command[1:]]
    return ["env", f"PYTHONPATH={os.pathsep.join(map(str, sources))}", *command]
