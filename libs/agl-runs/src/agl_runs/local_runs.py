"""Runs that were begun here: in the stores under ``agl-runs``, read without opening them as stores.

A store has one owner, and the run may be under way.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agl.cli.shared import read_and_close
from agl.errors import ConfigError, DamagedRecordError, StoreError
from agl.store.queries import DocumentQuery
from agl_runs.finding import last_time, last_write, open_server, placed, stores_here
from agl_runs.folders import FILE, STORE, known_run
from agl_runs.records import Run
from agl_runs.store import KIND, query_runs, runs_of
from agl_sqlite.file import open_to_read
from agl_sqlite.lookups import SqliteLookups

_IN_SERVER = "its store is a PostgreSQL of its own, which starts for a command that names the run"


def runs_here(folder: Path | None = None, *, in_files: bool = False) -> list[Run]:
    """The runs whose stores are under ``agl-runs``, or in one folder; oldest first.

    A store that cannot be read is a run with this problem; and so is a PostgreSQL, if not in the
    one folder. ``in_files`` leaves out those in a PostgreSQL.
    """
    found: list[Run] = []
    for file in stores_here(folder):
        try:
            if file.is_file() or (folder is not None and not in_files):
                found += runs_in(file)
            elif not in_files:
                found.append(_unknown(file, _IN_SERVER))
        except StoreError as error:
            found.append(_unknown(file, str(error)))
    return sorted(found, key=last_time)


def runs_in(file: Path) -> list[Run]:
    """The runs of a store's file.

    Raises:
        StoreError: It cannot be read, or is a PostgreSQL that another process has.
    """
    if file.is_dir():
        return [placed(run, file) for run in read_and_close(open_server(file), query_runs)]
    try:
        with closing(open_to_read(file)) as connection:
            runs = runs_of(SqliteLookups(connection).query_documents(DocumentQuery(KIND)))
            return [placed(run, file) for run in runs]
    except sqlite3.Error as error:
        raise DamagedRecordError(f"{file}: its runs cannot be read: {error}") from error


def _unknown(file: Path, problem: str) -> Run:
    """A run of which only its folder says something."""
    known, written = known_run(file.parent), file.parent / FILE
    return Run(
        run_id=file.parent.name if known is None else known[0],
        algorithm="",
        status="stopped",
        create_time=last_write(file if known is None else written),
        folder=str(file.parent.absolute()),
        problem=problem,
    )


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


def whole(run: Run) -> Run:
    """The same run, with what a PostgreSQL of its own has of it, which is started to be read."""
    if run.problem != _IN_SERVER:
        return run
    return one_of(runs_here(Path(run.folder or "")), run.run_id)


def one_of(runs: Sequence[Run], name: str) -> Run:
    """The run with this id, or the only one of whose id it is a part; a beginning goes first.

    Raises:
        ConfigError: There is none, or there are several.
    """
    for matches in (str.__eq__, str.startswith, str.__contains__):
        found = [run for run in runs if matches(run.run_id, name)]
        if len(found) == 1:
            return whole(found[0])
        if found:
            ids = ", ".join(run.run_id for run in found[-5:])
            if len({run.run_id for run in found}) == 1:
                places = ", ".join(str(run.folder) for run in found)
                raise ConfigError(
                    f"run {found[0].run_id!r} is here several times, in {places}. Name the folder"
                )
            of = f"the ids of {len(found)} runs, the newest of which are {ids}"
            raise ConfigError(f"{name!r} is part of {of}. Give one of these")
    ids = ", ".join(run.run_id for run in runs[-5:]) or "none"
    raise ConfigError(f"no run {name!r} here; the newest are: {ids}. See: agl runs")
