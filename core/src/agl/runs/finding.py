"""Runs that were begun here: in the stores under ``agl-runs``, read without opening them as stores.

A store has one owner, and the run may be under way.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agl.errors import ConfigError, DamagedRecordError
from agl.runs.folders import CONFIG, FILE, RUNS, STORE, known_run
from agl.store.queries import make_query
from agl.store.sqlite.lookups import SqliteLookups
from agl.types import Run

SINCE_SCHEMA = 5
"""Older stores have no records of runs."""
_PLACES = ("file", "working_directory")
"""What of a run's configuration says where things lie beside its folder; absolute."""


def runs_here(folder: Path | None = None) -> list[Run]:
    """The runs whose stores are under ``agl-runs``, or that of one folder; oldest first.

    A store that cannot be read is a run with this problem.
    """
    files = stores_here() if folder is None else [folder / STORE]
    found = [run for file in files if file.is_file() for run in _runs_or_problem(file)]
    return sorted(found, key=last_time)


def stores_here() -> list[Path]:
    """The stores under ``agl-runs``."""
    return sorted(Path(RUNS).glob(f"*/{STORE}"))


def _runs_or_problem(file: Path) -> list[Run]:
    try:
        return runs_in(file)
    except DamagedRecordError as error:
        return [_unknown(file, str(error))]


def runs_in(file: Path) -> list[Run]:
    """The runs of a store's file; of an older one that which its folder says.

    Raises:
        DamagedRecordError: It cannot be read.
    """
    try:
        with closing(open_to_read(file)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version >= SINCE_SCHEMA:
                runs = SqliteLookups(connection).query_runs(make_query("runs"))
                return [placed(run, file) for run in runs]
    except sqlite3.Error as error:
        raise DamagedRecordError(f"{file}: its runs cannot be read: {error}") from error
    if known_run(file.parent) is None:
        return []
    problem = f"the store is of an older agl (schema {version}) and has no record of the run"
    return [_unknown(file, problem)]


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


def folder_here(run: Run) -> Path:
    """The folder of a run.

    Raises:
        ConfigError: It is not here.
    """
    if run.folder is None or not Path(run.folder).is_dir():
        raise ConfigError(
            f"run {run.run_id!r}: its folder {run.folder!r} is not here, and its files do not lie "
            f"beside its store. Put them where they were, or {STORE} into their folder, and name "
            "that"
        )
    return Path(run.folder)


def _unknown(file: Path, problem: str) -> Run:
    """A run of which only its folder says something."""
    known, written = known_run(file.parent), file.parent / FILE
    return Run(
        run_id=file.parent.name if known is None else known[0],
        algorithm="",
        status="stopped",
        create_time=(file if known is None else written).stat().st_mtime,
        folder=str(file.parent.absolute()),
        problem=problem,
    )


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


def one_of(runs: Iterable[Run], name: str) -> Run:
    """The run with this id, or the only one of whose id it is a part; a beginning goes first.

    Raises:
        ConfigError: There is none, or there are several.
    """
    known: Sequence[Run] = list(runs)
    for matches in (str.__eq__, str.startswith, str.__contains__):
        found = [run for run in known if matches(run.run_id, name)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(run.run_id for run in found[-5:])
            if len({run.run_id for run in found}) == 1:
                places = ", ".join(str(run.folder) for run in found)
                raise ConfigError(
                    f"run {found[0].run_id!r} is here several times, in {places}. Name the folder"
                )
            raise ConfigError(f"{name!r} is the beginning of several runs: {ids}. Say more of it")
    ids = ", ".join(run.run_id for run in known[-5:]) or "none"
    raise ConfigError(f"no run {name!r} here; the newest are: {ids}. See: agl runs")
