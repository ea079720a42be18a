"""Where the stores of runs lie, and the files and the code of a run, also of one that was moved."""

import os
from pathlib import Path

from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl.utils.logs import tell
from agl_runs.folders import CONFIG, RUNS, STORE, known_run
from agl_runs.records import Run
from agl_runs.user_code import put_on_path

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


def _is_beside(run_id: str, file: Path, other: Path) -> bool:
    known = known_run(file.parent)
    if known is not None:
        return known[0] == run_id
    is_own = file.absolute().parent.name == run_id or (file.parent / CONFIG).is_file()
    return is_own or (other.is_file() and not other.samefile(file))


def last_time(run: Run) -> float:
    """When the run was last begun."""
    return run.generations[-1].start_time if run.generations else run.create_time
