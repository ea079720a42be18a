"""Where the stores of runs lie, and the files of a run whose store was moved."""

import os
from pathlib import Path

from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl_runs.folders import CONFIG, RUNS, STORE, known_run
from agl_runs.records import Run

_PLACES = ("file", "working_directory")
"""What of a run's configuration says where things lie beside its folder; absolute."""


def innermost(store: LightningStore) -> LightningStore:
    """The store to which others forward."""
    while isinstance(store, ForwardingStore):
        store = store.target
    return store


def stores_here() -> list[Path]:
    """The stores under ``agl-runs``."""
    return sorted(Path(RUNS).glob(f"*/{STORE}"))


def placed(run: Run, file: Path) -> Run:
    """A run as its store has it, with the folder in which its files lie now.

    A run's folder may have been moved or copied with the store in it: then the folder is the
    store's. If the store is shared by several runs, the folder is the one in the record. The run's
    configuration file and working directory are looked for at the same place relative to the
    folder.
    """
    folder = file.absolute().parent
    old = Path(run.folder or folder)
    if file.name != STORE or folder == old or not _is_beside(run.run_id, file, old / STORE):
        return run
    config = dict(run.config)
    places = {name: os.path.relpath(config[name], old) for name in _PLACES if name in config}
    moved = {name: Path(os.path.normpath(folder / place)) for name, place in places.items()}
    if "file" in moved and moved["file"].is_file():
        config |= {name: str(place) for name, place in moved.items()}
    return run.changed(folder=str(folder), config=config)


def _is_beside(run_id: str, file: Path, other: Path) -> bool:
    known = known_run(file.parent)
    if known is not None:
        return known[0] == run_id
    is_own = file.absolute().parent.name == run_id or (file.parent / CONFIG).is_file()
    return is_own or (other.is_file() and not other.samefile(file))


def last_time(run: Run) -> float:
    """When the run was last begun."""
    return run.generations[-1].start_time if run.generations else run.create_time
