"""Other checkouts of this repository beside this one, for benchmarks that compare them."""

import os
from collections.abc import Sequence
from pathlib import Path


def checkout(text: str) -> tuple[str, Path]:
    """The name and the folder of ``--tree NAME=FOLDER``."""
    name, _, folder = text.partition("=")
    return name, Path(folder).resolve()


def run_from(folder: Path, command: Sequence[str]) -> list[str]:
    """The command, with the sources of a checkout first on Python's path."""
    sources = [folder / "core/src", *sorted(folder.glob("libs/*/src"))]
    sources += sorted(folder.glob("plugins/*/src"))
    if not sources[0].is_dir():
        raise SystemExit(f"{folder}: no checkout of this repository; core/src is not there")
    return ["env", f"PYTHONPATH={os.pathsep.join(map(str, sources))}", *command]
