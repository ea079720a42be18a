"""``agl spans``: what happened in one rollout."""

from collections.abc import Sequence
from pathlib import Path

import click

from agl.cli.shared import open_store, print_json, print_table, read_and_close, store_options
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Span


@click.command("spans")
@click.argument("rollout_id", metavar="ROLLOUT")
@store_options
@click.option("--attempt", default=None, help="Only this attempt; 'latest' for the newest.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON, attributes included.")
def command(
    rollout_id: str, path: Path | None, url: str | None, attempt: str | None, as_json: bool
) -> None:
    """List the spans of ROLLOUT."""

    async def read(store: LightningStore) -> Sequence[Span]:
        if await store.get_rollout_by_id(rollout_id) is None:
            raise ConfigError(f"the store has no rollout {rollout_id!r}. See: agl rollouts")
        return await store.query_spans(rollout_id, attempt)

    spans = read_and_close(open_store(path, url), read)
    if as_json:
        print_json([span.model_dump(mode="json") for span in spans])
        return
    rows = [
        [
            span.attempt_id,
            span.sequence_id,
            span.name,
            span.status.status_code,
            _seconds(span),
            span.span_id,
            span.parent_id,
        ]
        for span in spans
    ]
    columns = ["attempt_id", "sequence_id", "name", "status", "seconds", "span_id", "parent_id"]
    print_table(columns, rows)


def _seconds(span: Span) -> str:
    if span.start_time is None or span.end_time is None:
        return ""
    return f"{span.end_time - span.start_time:.3f}"
