"""``agl import``: what was recorded elsewhere, into a store."""

import time
from pathlib import Path

import click

from agl.cli.shared import note, read_and_close
from agl.store.base import LightningStore
from agl_inspect.exchange.importer import Imported, Importer
from agl_inspect.exchange.otlp_json import add_otlp, is_otlp
from agl_inspect.exchange.store_dump import is_store, read_store
from agl_records.calls.sources.unread import by_scope
from agl_sqlite import SqliteLightningStore
from agl_views.tables.stores import open_store

PROGRESS_SECONDS = 2.0


@click.command("import")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="A store file, made where there is none, or a run's folder.",
)
@click.option("--url", help="Address of a store server; its token is in AGL_SERVER_TOKEN.")
def command(files: tuple[Path, ...], path: Path | None, url: str | None) -> None:
    """Put rollouts, resources and rewards of other programs into a store.

    A FILE is JSON with rollouts, resources and rewards (.json, or .jsonl with one of them per
    line), or OTLP as JSON, as OpenTelemetry's collector writes it. What the store has already is
    skipped, so an import may be repeated. What agl export --as store wrote goes into a new file,
    as it was.
    """
    for file in files:
        if not file.is_file():
            raise click.UsageError(f"{file}: not a regular file, and it is read more than once")
    done = read_and_close(open_or_make(path, url), lambda store: _import(store, files))
    known = f" ({done.known} were there already)" if done.known else ""
    note(
        f"{done.rollouts} rollouts{known}, {done.spans} spans, {done.rewards} rewards, "
        f"{done.resources} snapshots of resources in {url or path}"
    )
    for remark in by_scope(done.unread):
        note(remark)


def open_or_make(path: Path | None, url: str | None) -> LightningStore:
    """The store that the options name; a file is made where there is none."""
    if path is None and url is None:
        raise click.UsageError("where to? Give --path FILE or --url URL")
    if path is None or url is not None or path.exists():
        return open_store(path, url, to_write=True)
    if not path.parent.is_dir():
        raise click.UsageError(f"{path}: there is no folder {str(path.parent)!r}")
    return SqliteLightningStore(path)


async def _import(store: LightningStore, files: tuple[Path, ...]) -> Imported:
    said = time.monotonic()

    def progress(done: Imported) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            note(f"{done.rollouts} rollouts, {done.spans} spans")

    for whole in filter(is_store, files):
        if len(files) > 1 or not isinstance(store, SqliteLightningStore):
            raise click.UsageError(f"{whole}: a whole store goes alone into a new --path FILE")
        return await read_store(store, whole, progress)
    importer = Importer(store, progress)
    await importer.look()
    for path in files:
        await (add_otlp(importer, path) if is_otlp(path) else importer.add(path))
    return importer.done
