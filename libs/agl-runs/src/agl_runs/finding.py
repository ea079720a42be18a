"""Where the stores of runs lie, and the files and the code of a run, also of one that was moved."""

import os
from pathlib import Path
from typing import Any

from agl.plugins.parts import plan_part
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl.utils.logs import tell
from agl_runs.folders import CONFIG, RUNS, STORE, STORES, known_run
from agl_runs.records import Run
from agl_runs.user_code import put_on_path

_VERSION = Path("data", "PG_VERSION")  # in the folder of a PostgreSQL
_PLACES = ("file", "working_directory")
"""What of a run's configuration says where things lie beside its folder; absolute."""


def innermost(store: LightningStore) -> LightningStore:
    """The store to which others forward."""
    while isinstance(store, ForwardingStore):
        store = store.target
    return store


def stores_here(folder: Path | None = None) -> list[Path]:
    """The stores under ``agl-runs``, or those of a folder, which may be one; the newest last."""
    places = Path(RUNS).glob("*/store.*") if folder is None else (folder, *folder.glob("store.*"))
    found = [one for one in places if one.name == STORE or os.path.exists(one / _VERSION)]
    return sorted(found, key=last_write)


def last_write(store: Path) -> float:
    """When a store's file was written; of a PostgreSQL, which writes when it is read, was made."""
    return os.path.getmtime(store / _VERSION if store.is_dir() else store)


def open_server(place: Path | str, *, to_write: bool = False) -> LightningStore:
    """The store at an address, or of the PostgreSQL in a folder, which ends with the store."""
    spec = place if isinstance(place, str) else {"type": "postgres", "path": str(place)}
    # A person waits: an address where nobody is shall be named soon.
    options: dict[str, Any] = {"retry_delays": (0.1, 0.5, 1.0)}
    if not to_write:  # who reads a database makes no tables, and ends no overdue attempts
        options |= {"read_only": True, "scan_interval_seconds": 1e6}
    return plan_part("store", spec, **options).build()


def placed(run: Run, file: Path) -> Run:
    """A run as its store has it, with the folder in which its files lie now.

    A run's folder may have been moved or copied with the store in it: then the folder is the
    store's. If the store is shared by several runs, the folder is the one in the record. The run's
    configuration file and working directory are looked for at the same place relative to the
    folder.
    """
    folder = file.absolute().parent
    old = Path(run.folder or folder)
    if file.name not in STORES or folder == old or not _is_beside(run, file, old / file.name):
        return run
    config = dict(run.config)
    places = {name: os.path.relpath(config[name], old) for name in _PLACES if name in config}
    moved = {name: Path(os.path.normpath(folder / place)) for name, place in places.items()}
    if "file" in moved and moved["file"].is_file():
        config |= {name: str(place) for name, place in moved.items()}
    return run.changed(folder=str(folder), config=config)


def find_code(run: Run) -> None:
    """Have modules looked for where they were when a run was begun: beside its file, then here."""
    places = [run.config.get(name) for name in _PLACES]
    file, place = (Path(one) if isinstance(one, str) else None for one in places)
    put_on_path(*filter(None, (file and file.parent, place, Path.cwd())))


def enter(run: Run) -> None:
    """Go to the working directory of a run, where what its configuration names is looked for."""
    place = run.config.get("working_directory")
    if place is not None and os.path.isdir(place) and not os.path.samefile(place, os.getcwd()):
        tell(f"working directory: {place}")
        os.chdir(place)


def _is_beside(run: Run, file: Path, other: Path) -> bool:
    known = known_run(file.parent)
    if known is not None:
        return known[0] == run.run_id
    is_own = file.absolute().parent.name == run.run_id or (file.parent / CONFIG).is_file()
    return is_own or (other.exists() and not other.samefile(file))


def last_time(run: Run) -> float:
    """When the run was last begun."""
    return run.generations[-1].start_time if run.generations else run.create_time
