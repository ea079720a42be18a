"""``agl import``: what was recorded elsewhere, into a store."""

import time
from functools import partial
from pathlib import Path

import click

from agl.cli.shared import note, read_and_close
from agl.store.base import LightningStore
from agl_inspect.exchange.conversations import beginnings, read_atif, read_messages
from agl_inspect.exchange.importer import Imported, Importer
from agl_inspect.exchange.otlp import LoggedEvents, is_otlp, read_otlp
from agl_inspect.exchange.store_dump import is_store, read_store
from agl_inspect.exchange.tracer_files import READERS as TRACES, with_rewards
from agl_inspect.exchange.traces import add_traces
from agl_records.calls.sources import by_scope
from agl_sqlite import SqliteLightningStore
from agl_views.tables.stores import open_store

PROGRESS_SECONDS = 2.0
RECORDS = {"atif": read_atif, "messages": read_messages}
"""Forms that are conversations -> their readers; those of traces are ``TRACES``."""


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
@click.option(
    "--from",
    "form",
    type=click.Choice([*RECORDS, *TRACES]),
    help="Whose files they are; without it, agl's own and OTLP are told apart.",
)
@click.option("--reward", metavar="NAME", help="langfuse, mlflow: the score that is the reward.")
@click.option("--url", help="Address of a store server; its token is in AGL_SERVER_TOKEN.")
def command(
    files: tuple[Path, ...],
    path: Path | None,
    form: str | None,
    reward: str | None,
    url: str | None,
) -> None:
    """Put rollouts, resources and rewards of other programs into a store.

    A FILE is JSON with rollouts, resources and rewards (.json, or .jsonl with one of them per
    line), or OTLP as JSON, as OpenTelemetry's collector writes it. What the store has already is
    skipped, so an import may be repeated. --from reads files of other forms. What agl export --as
    store wrote goes into a new file, as it was.
    """
    for file in files:
        if not file.is_file():
            raise click.UsageError(f"{file}: not a regular file, and it is read more than once")
    if reward is not None and form not in ("langfuse", "mlflow"):
        raise click.UsageError("--reward names a score, which --from langfuse and mlflow have")
    if path is None and url is None:
        raise click.UsageError("where to? Give --path FILE or --url URL")
    new = None if path is None or url is not None or path.exists() else path
    if new is not None and not new.parent.is_dir():
        raise click.UsageError(f"{new}: there is no folder {str(new.parent)!r}")
    store = open_store(path, url, to_write=True) if new is None else SqliteLightningStore(new)
    done = Imported()
    try:
        done = read_and_close(store, lambda store: _import(store, files, form, reward, done))
    except BaseException:
        if new is not None and done == Imported():  # nothing is in it
            new.unlink(missing_ok=True)
        raise
    known = f" ({done.known} were there already)" if done.known else ""
    note(
        f"{done.rollouts} rollouts{known}, {done.spans} spans, {done.rewards} rewards, "
        f"{done.resources} snapshots of resources in {url or path}"
    )
    for remark in (*done.remarks, *by_scope(done.unread)):
        note(remark)


async def _import(
    store: LightningStore,
    files: tuple[Path, ...],
    form: str | None,
    reward: str | None,
    done: Imported,
) -> Imported:
    said = time.monotonic()

    def progress(done: Imported) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            note(f"{done.rollouts} rollouts, {done.spans} spans")

    for whole in filter(is_store, () if form else files):
        if len(files) > 1 or not isinstance(store, SqliteLightningStore):
            raise click.UsageError(f"{whole}: a whole store goes alone into a new --path FILE")
        return await read_store(store, whole, progress)
    importer = Importer(store, progress, done)
    await importer.look()
    otlp = [] if form else [path for path in files if is_otlp(path)]
    events = LoggedEvents(otlp)
    for path in files:
        if form in RECORDS:
            await importer.add(path, RECORDS[form])
            importer.done.remarks += beginnings(path) if form == "messages" else []
        elif form in TRACES:
            read, remarks = with_rewards(path, TRACES[form], reward)
            await add_traces(importer, path, read)
            importer.done.remarks += remarks
        elif path in otlp:
            await add_traces(importer, path, partial(read_otlp, events=events))
        else:
            await importer.add(path)
    importer.done.remarks += events.remarks()
    return importer.done
