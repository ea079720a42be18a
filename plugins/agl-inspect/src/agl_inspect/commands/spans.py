"""``agl spans``: what happened in one rollout."""

from collections.abc import Sequence
from pathlib import Path

import click

from agl.cli.shared import print_json, print_table
from agl.store.base import LightningStore
from agl.types import Span
from agl_inspect.readable import read_undamaged
from agl_inspect.show.id_lookup import rollout_of
from agl_views.tables.stores import open_store, store_options


@click.command("spans")
@click.argument("name", metavar="[ROLLOUT]", required=False)
@store_options
@click.option("--attempt", default=None, help="Only this attempt; 'latest' for the newest.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON, attributes included.")
def command(
    name: str | None, path: Path | None, url: str | None, attempt: str | None, as_json: bool
) -> None:
    """List the spans of ROLLOUT, an id or the beginning of one; without it, of the newest."""

    async def read(store: LightningStore) -> Sequence[Span]:
        return await store.query_spans(await rollout_of(store, name), attempt)

    spans = read_undamaged(open_store(path, url), read, spans=True)
    if as_json:
        print_json([span.model_dump(mode="json") for span in spans])
        return
    parents = {span.span_id: span.parent_id for span in spans}
    depths: dict[str, int] = {}
    """How many of the others are above a span; 0 where they are above each other."""
    for span_id in parents:
        above, seen = parents[span_id], {span_id}
        while above in parents and above not in seen:
            seen.add(above)
            above = parents[above]
        depths[span_id] = 0 if above in seen else len(seen) - 1
    rows = [
        [
            span.sequence_id,
            "  " * depths[span.span_id] + span.name,
            span.status.status_code,
            f"{span.end_time - span.start_time:.3f}" if span.end_time and span.start_time else "",
            span.span_id,
            span.attempt_id,
            span.parent_id,
        ]
        for span in spans
    ]
    columns = ["#", "name", "status", "seconds", "span_id", "attempt_id", "parent_id"]
    print_table(columns, rows, cut=True)
