"""What ``agl runs`` does: find runs, show one, delete one."""

import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click

from agl.cli.shared import print_table, read_and_close
from agl.errors import ConfigError, DamagedRecordError, UnknownRecordError
from agl.store.base import LightningStore
from agl_inspect.figures import rounded
from agl_learning.reports.run_metrics import RunMetrics
from agl_runs import store as store_runs
from agl_runs.differences import flat
from agl_runs.folders import CONFIG, FILE, RUNS, STORE, is_alive, is_here, shown_status
from agl_runs.local_runs import one_of, runs_here, runs_in
from agl_runs.records import Run
from agl_sqlite import SqliteLightningStore
from agl_sqlite.file import open_to_read
from agl_views.tables.stores import open_store, store_file, store_of

T = TypeVar("T")
Where = tuple[Path | None, str | None]
"""``--path`` and ``--url``."""
MOST_TASKS = 50
"""So many tasks are shown; ``--json`` has all."""


def runs_of_store(path: Path | None, url: str | None) -> list[Run]:
    """The runs of the store that is named; without one, of all under ``agl-runs``."""
    if url is not None:
        return read_and_close(open_store(path, url), store_runs.query_runs)
    return runs_here() if path is None else runs_in(store_file(path))


def find_run(name: str, where: Where) -> Run:
    """The run with this id, or the only one of whose id it is a part; or that of a folder or file.

    None, and several, are a ``ConfigError``.
    """
    if where == (None, None) and os.path.exists(name):  # a long name does not
        place = Path(name)  # a folder beside agl-runs may have the name of a run
        is_folder = place.is_dir()
        runs = (runs_here(place) or runs_here(Path(RUNS, name))) if is_folder else runs_in(place)
        return runs[0] if len(runs) == 1 else one_of(runs, "" if runs else name)
    return one_of(runs_of_store(*where), name)


def store_and_run(name: str | None, where: Where) -> tuple[Where, str | None]:
    """The store that RUN, ``--path`` and ``--url`` name, and the run; None for all of a file."""
    if name is None:
        return where, None
    if where == (None, None) and (os.path.exists(name) or name.endswith(".db")):
        return (Path(name), None), None
    run = find_run(name, where)
    return where if any(where) else (file_of(run, None), None), run.run_id


def read_store_of(run: Run, where: Where, read: Callable[[LightningStore], Awaitable[T]]) -> T:
    """What ``read`` finds in the store that has a run, which may be in use; it is left as it is.

    A store that is not where it was is a ``ConfigError``.
    """
    return read_and_close(_store_of(run, where), read)


def _store_of(run: Run, where: Where, *, to_write: bool = False) -> LightningStore:
    path, url = where
    return open_store(file_of(run, path) if url is None else path, url, to_write=to_write)


@contextmanager
def copy_of_store(run: Run, where: Where) -> Generator[tuple[LightningStore, str]]:
    """The store that has a run, of a file a copy, whether it is open elsewhere or not; its place.

    One that is not where it was is a ``ConfigError``, and one that cannot be read a
    ``DamagedRecordError``.
    """
    path, url = where
    file = None if url else file_of(run, path).absolute()
    if file is None or file.is_dir():
        yield open_store(file, url), url or str(file)
        return
    with TemporaryDirectory(prefix="agl-copy-") as scratch:
        copy = Path(scratch) / STORE
        copy.touch(mode=0o600)
        try:
            with closing(open_to_read(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.Error as error:
            raise DamagedRecordError(f"{file}: cannot be copied for reading: {error}") from error
        yield SqliteLightningStore(copy), str(file)


def file_of(run: Run, path: Path | None) -> Path:
    """The file of the store that has a run: the one that is named, else the run's own."""
    return store_of(run) if path is None else store_file(path)


def _when(time: float | None) -> str:
    """A moment, in UTC to the second."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%SZ}"


def derived_from(run: Run, known: list[Run]) -> list[str]:
    """Ids of the runs that were derived from one, of those that are known or under agl-runs."""
    ids = [
        one.run_id
        for one in (*known, *runs_here())
        if one.derived_from is not None and one.derived_from.run_id == run.run_id
    ]
    return list(dict.fromkeys(ids))


def run_row(run: Run) -> dict[str, Any]:
    """What ``agl runs`` lists of a run."""
    metrics = RunMetrics.of(run)
    reward, held_out = metrics.last_rewards
    begun_here = bool(run.generations) and is_here(run.generations[-1])
    is_without = begun_here and not os.path.isdir(run.folder or "")  # as one that wrote nothing
    return {
        "run": run.run_id,
        "algorithm": run.algorithm,
        "state": None if run.problem else shown_status(run),
        "starts": len(run.generations) or None,
        "step": metrics.step,
        "reward": reward,
        "held_out": held_out,
        "begun": _when(run.create_time),
        "folder": None if is_without else run.folder,
        "unread": metrics.unread or None,
    }


def print_run(run: Run, derived: list[str]) -> None:
    """Write all that is known of a run, and which runs were derived from it."""
    code = run.code
    about: dict[str, Any] = {
        **run_row(run),
        "problem": run.problem or None,
        "derived from": run.derived_from
        and f"{run.derived_from.run_id} in {run.derived_from.store}",
        "derived": ", ".join(derived) or None,
        "seed": run.seed,
        **code.origin,
        **{name: f"{one.num_tasks} tasks ({one.digest})" for name, one in run.datasets.items()},
    }
    print_table(["", ""], [rounded(each) for each in about.items() if each[1] is not None])
    for each in run.generations:
        how = each.outcome or shown_status(run)
        where = f"process {each.pid} on {each.host}"
        times = f"{_when(each.start_time)} to {_when(each.end_time) or '?'}"
        click.echo(f"start {each.number}    {times}, {how}, {where}")
        for why in (each.error, *each.differences):
            if why:
                click.echo(f"           {why}")
    click.echo()
    print_table(["option", "value"], flat(run.config).items())
    click.echo()
    print_table(["distribution", "version"], code.versions.items())


def delete_run(
    run: Run,
    where: Where,
    agree: Callable[[dict[str, int]], bool],
    *,
    with_folder: bool,
    force: bool,
) -> dict[str, int] | None:
    """Delete a run with what it holds, and say how much that was; None where nobody agreed.

    ``agree`` is told how much it holds. A run that may be under way on another machine goes with
    ``force`` only. One that runs here, or whose folder holds more than it, is a ``ConfigError``.
    """
    if with_folder and run.folder is not None:
        folder = Path(run.folder)
        others = [one for one in runs_here(folder) if one.run_id != run.run_id]
        is_made = folder.parent.name == RUNS or run.derived_from is not None
        is_run = is_made or any((folder / one).is_file() for one in (CONFIG, FILE))
        if others or not is_run or Path.cwd().is_relative_to(folder):
            what = f"holds run {others[0].run_id!r}, too" if others else "is not a run's alone"
            raise ConfigError(
                f"the folder {str(folder)!r} of run {run.run_id!r} {what}; delete the run without "
                "--folder, and remove by hand what is to go"
            )
    if is_alive(run):
        last = run.generations[-1]
        who, begun_here = f"process {last.pid} on {last.host}", is_here(last)
        if begun_here or not force:
            gone = "" if begun_here else "; if that machine is gone, delete it with --force"
            raise ConfigError(f"run {run.run_id!r} is running ({who}); stop it first{gone}")

    async def delete(store: LightningStore) -> dict[str, int] | None:
        try:
            counts = await store_runs.delete_run(store, run.run_id, only_count=True)
        except UnknownRecordError:  # a run of before there were records
            raise ConfigError(
                f"run {run.run_id!r}: {run.problem}; remove its folder {run.folder!r} by hand"
            ) from None
        if not agree(counts):
            return None
        if run.status == "running":
            number = run.generations[-1].number
            await store_runs.end_run(store, run.run_id, number, "died", "its process was gone")
        return await store_runs.delete_run(store, run.run_id)

    deleted = read_and_close(_store_of(run, where, to_write=True), delete)
    if deleted is not None and with_folder and run.folder is not None:
        shutil.rmtree(run.folder, ignore_errors=True)
    return deleted
