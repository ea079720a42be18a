"""Runs that were begun here: in the stores under ``agl-runs``, read without opening them as stores.

A store has one owner, and the run may be under way.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agl.errors import ConfigError, DamagedRecordError
from agl.runs.folders import FILE, RUNS, STORE, known_run
from agl.store.queries import make_query
from agl.store.sqlite.lookups import SqliteLookups
from agl.types import Run

SINCE_SCHEMA = 5
"""Older stores have no records of runs."""


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
                return list(SqliteLookups(connection).query_runs(make_query("runs")))
    except sqlite3.Error as error:
        raise DamagedRecordError(f"{file}: its runs cannot be read: {error}") from error
    if known_run(file.parent) is None:
        return []
    problem = f"the store is of an older agl (schema {version}) and has no record of the run"
    return [_unknown(file, problem)]


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


def copy_store(file: Path, folder: Path) -> Path:
    """Copy the file of a store, whether it is open elsewhere or not; the copy.

    Args:
        file: The store's; it is left as it is.
        folder: Gets the copy, ``store.db``.

    Raises:
        DamagedRecordError: It cannot be read.
    """
    copy = folder / STORE
    copy.touch(mode=0o600)
    try:
        with closing(open_to_read(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise DamagedRecordError(f"{file}: cannot be copied for reading: {error}") from error
    return copy


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection to the file of a store, which may be open elsewhere; it changes nothing.

    SQLite would leave files of its own beside it, were it not told that nobody writes.
    """
    how = "mode=ro" if file.with_name(f"{file.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?{how}", uri=True)


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
            raise ConfigError(f"{name!r} is the beginning of several runs: {ids}. Say more of it")
    ids = ", ".join(run.run_id for run in known[-5:]) or "none"
    raise ConfigError(f"no run {name!r} here; the newest are: {ids}. See: agl runs")
