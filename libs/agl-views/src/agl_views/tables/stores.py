"""The store that a command reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agl.cli.shared import note
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl_runs.finding import open_server, stores_here
from agl_runs.folders import RUNS, STORE
from agl_runs.local_runs import one_of, runs_here
from agl_runs.records import Run
from agl_sqlite import SqliteLightningStore
from agl_views.tables.file_store import FileStore


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--path`` and ``--url`` to a command."""
    path = click.option(
        "--path",
        type=click.Path(path_type=Path),
        help="A store file, or a run: its folder, id or a part of that; without it, the newest "
        "run under agl-runs.",
    )
    url = click.option(
        "--url",
        help="Address of a store server, whose token is in AGL_SERVER_TOKEN, or of PostgreSQL.",
    )
    return path(url(function))


def open_store(path: Path | None, url: str | None, *, to_write: bool = False) -> LightningStore:
    """The store that the options name; read beside the process that has it open.

    Args:
        path: Its file or folder, or a run; see ``store_file``.
        url: Address of its server, or of its database.
        to_write: Take it for oneself.

    Raises:
        ConfigError: Both options, or no store there.
    """
    if path is not None and url is not None:
        raise ConfigError("--path and --url name two stores; give one")
    if url is not None:
        return open_server(url, to_write=to_write)
    if path is not None:
        file = store_file(path)
    elif files := stores_here():
        note(f"store: {(file := files[-1])}")
    else:
        raise ConfigError(
            "there is no agl-runs/*/store.db here (a Trainer without run= keeps none); give --path "
            "FILE or --url URL"
        )
    if file.is_dir():
        return open_server(file, to_write=to_write)
    return SqliteLightningStore(file) if to_write else FileStore(file)


def store_file(path: Path) -> Path:
    """The store that a path names: itself, or that of a run by its folder or a part of its id.

    Raises:
        ConfigError: There is none.
    """
    if path.is_dir():  # it may have the name of a run, and be another
        if stores := stores_here(path) or stores_here(Path(RUNS) / path):
            return stores[-1]
        path /= STORE
    elif path.is_file():
        return path
    elif str(path) == path.name and path.suffix != ".db":
        return store_of(one_of(runs_here(), str(path)))
    raise ConfigError(f"{path}: no such store file")


def store_of(run: Run) -> Path:
    """The store file of a run that is in its folder or under ``agl-runs``.

    Raises:
        ConfigError: It is not where it was.
    """
    for file in (*stores_here(Path(run.folder or "")), *filter(Path.is_file, stores_here())):
        if any(one.run_id == run.run_id for one in runs_here(file.parent)):
            return file
    raise ConfigError(f"run {run.run_id!r}: its store is not under agl-runs any more")
