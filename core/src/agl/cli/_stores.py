"""Opening the store that a listing reads."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl.cli._output import note

if TYPE_CHECKING:
    from agl.store.base import LightningStore


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--path`` and ``--url`` to a command."""
    path = click.option(
        "--path",
        type=click.Path(path_type=Path),
        help="A store file; without it, that of the newest run under agl-runs.",
    )
    url = click.option("--url", help="The address of a store server.")
    return path(url(function))


def open_store(path: Path | None, url: str | None) -> "LightningStore":
    """The store that the options name.

    Raises:
        ConfigError: Both options, or no store there.
    """
    from agl.errors import ConfigError

    if path is not None and url is not None:
        raise ConfigError("--path and --url name two stores; give one")
    if url is not None:
        from agl.client import LightningStoreClient

        return LightningStoreClient(url)
    if path is None:
        path = newest_store()
    elif not path.is_file():
        raise ConfigError(f"{path}: no such store file")
    from agl.store.sqlite import SqliteLightningStore

    return SqliteLightningStore(path)


def newest_store() -> Path:
    """The store file of the newest run under ``agl-runs``.

    Raises:
        ConfigError: There is none.
    """
    from agl.errors import ConfigError

    files = sorted(Path("agl-runs").glob("*/store.db"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ConfigError("there is no agl-runs/*/store.db here; give --path FILE or --url URL")
    note(f"store: {files[-1]}")
    return files[-1]
