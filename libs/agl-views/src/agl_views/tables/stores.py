"""The store that a command reads."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl.cli.shared import note
from agl.errors import ConfigError

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_runs.records import Run


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


def open_store(path: Path | None, url: str | None, *, to_write: bool = False) -> "LightningStore":
    """The store that the options name; read beside the process that has it open.

    Args:
        path: Its file, or a run; see ``store_file``.
        url: Address of its server, or of its database.
        to_write: Take it for oneself.

    Raises:
        ConfigError: Both options, or no store there.
    """
    if path is not None and url is not None:
        raise ConfigError("--path and --url name two stores; give one")
    if url is not None:
        import agl
        from agl.plugins.parts import plan_part

        if url.startswith(("postgres:", "postgresql:")):
            return plan_part("store", url, where="--url").build()
        # A person waits: an address where nobody is shall be named soon.
        return agl.LightningStoreClient(url, retry_delays=(0.1, 0.5, 1.0))
    from agl_runs.finding import stores_here
    from agl_sqlite import SqliteLightningStore
    from agl_views.tables.file_store import FileStore

    if path is not None:
        file = store_file(path)
    elif files := sorted(stores_here(), key=lambda file: file.stat().st_mtime):
        note(f"store: {(file := files[-1])}")
    else:
        raise ConfigError(
            "there is no agl-runs/*/store.db here (a Trainer without run= keeps none); give --path "
            "FILE or --url URL"
        )
    return SqliteLightningStore(file) if to_write else FileStore(file)


def store_file(path: Path) -> Path:
    """The store file that a path names: itself, or that of a run by its folder or a part of its id.

    Raises:
        ConfigError: There is none.
    """
    from agl_runs.folders import RUNS, STORE
    from agl_runs.local_runs import one_of, runs_here

    file = path / STORE if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir() and (of_run := Path(RUNS) / path / STORE).is_file():
        return of_run  # the folder has the name of a run, and is another
    if str(path) == path.name and path.suffix != ".db" and not path.is_dir():
        return store_of(one_of(runs_here(), str(path)))
    raise ConfigError(f"{file}: no such store file")


def store_of(run: "Run") -> Path:
    """The store file of a run that is in its folder or under ``agl-runs``.

    Raises:
        ConfigError: It is not where it was.
    """
    from agl_runs.finding import stores_here
    from agl_runs.folders import STORE
    from agl_runs.local_runs import runs_here

    for file in (Path(run.folder or "") / STORE, *stores_here()):
        if file.is_file() and any(one.run_id == run.run_id for one in runs_here(file.parent)):
            return file
    raise ConfigError(f"run {run.run_id!r}: its store is not under agl-runs any more")
