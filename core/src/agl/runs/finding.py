"""Where the stores of runs lie, and the files of a run whose store was moved."""

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from agl.runs.folders import CONFIG, RUNS, STORE, known_run
from agl.types import Run

_PLACES = ("file", "working_directory")
"""What of a run's configuration says where things lie beside its folder; absolute."""


def stores_here() -> list[Path]:
    """The stores under ``agl-runs``."""
    return sorted(Path(RUNS).glob(f"*/{STORE}"))


def placed(run: Run, file: Path) -> Run:
    """A run as its store has it, with the folder of that where the run's files lie beside it.

    Both may have been moved, and a copy is not what it was copied from. Else the folder is the one
    in the record, as for a store that several runs share. The file that the run was begun with, and
    its working directory, are looked for where they lay, seen from the folder.

    Args:
        run: As the store has it.
        file: Of the store.
    """
    folder = file.absolute().parent
    old = Path(run.folder or folder)
    if file.name != STORE or folder == old or not _is_beside(run.run_id, file, old / STORE):
        return run
    config = dict(run.config)
    moved = {name: _seen_from(folder, old, config[name]) for name in _PLACES if name in config}
    if "file" in moved and moved["file"].is_file():
        config |= {name: str(place) for name, place in moved.items()}
    return run.changed(folder=str(folder), config=config)


def _is_beside(run_id: str, file: Path, other: Path) -> bool:
    known = known_run(file.parent)
    if known is not None:
        return known[0] == run_id
    is_own = file.absolute().parent.name == run_id or (file.parent / CONFIG).is_file()
    return is_own or (other.is_file() and not other.samefile(file))


def _seen_from(folder: Path, old: Path, place: str) -> Path:
    return Path(os.path.normpath(folder / os.path.relpath(place, old)))


def open_to_read(file: Path, *, is_shared: bool = False) -> sqlite3.Connection:
    """A connection to the file of a store, which may be open elsewhere; it changes nothing.

    SQLite would leave files of its own beside it, were it not told that nobody writes.
    ``is_shared``: threads may use it, one at a time.
    """
    how = "mode=ro" if file.with_name(f"{file.name}-wal").exists() else "immutable=1"
    place = f"file:{quote(str(file.absolute()))}?{how}"
    return sqlite3.connect(place, uri=True, check_same_thread=not is_shared)


def last_time(run: Run) -> float:
    """When the run was last begun."""
    return run.generations[-1].start_time if run.generations else run.create_time
