"""``agl rollouts``: what a store was asked to do, and how it went."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click

from agl.cli.shared import (
    note,
    open_store,
    print_json,
    print_table,
    read_and_close,
    store_options,
)
from agl.emitter import find_final_reward
from agl.errors import DamagedRecordError
from agl.plugins.hooks import HookCaller
from agl.store.base import LightningStore
from agl.types import Failure, Rollout, Span

COLUMNS = ["rollout_id", "status", "mode", "attempts", "reward", "seconds", "input", "error"]


@click.command("rollouts")
@store_options
@click.option("--status", "statuses", multiple=True, help="Only of this status; repeat.")
@click.option("--limit", default=-1, show_default="all", help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    path: Path | None, url: str | None, statuses: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """List the rollouts of a store, with reward and reason of failure."""

    async def read(store: LightningStore) -> tuple[list[dict[str, Any]], int]:
        hooks = HookCaller()
        wanted: Any = list(statuses) or None
        found = await store.query_rollouts(status_in=wanted, limit=limit)
        return [await _row(store, rollout, hooks) for rollout in found], found.total

    rows, total = read_and_close(open_store(path, url), read)
    if as_json:
        print_json(rows)
        return
    # Those of plugins last, as they appear; not every line need have them.
    columns = dict.fromkeys(chain(COLUMNS, *rows))
    columns.pop("resources_id", None)
    print_table(list(columns), [[_short(row.get(column)) for column in columns] for row in rows])
    if len(rows) < total:
        note(f"{len(rows)} of {total} rollouts; --limit shows more")


async def _row(store: LightningStore, rollout: Rollout, hooks: HookCaller) -> dict[str, Any]:
    attempts = await store.query_attempts(rollout.rollout_id)
    error = attempts[-1].error if attempts else None
    spans: Sequence[Span] = ()
    try:
        spans = await store.query_spans(rollout.rollout_id, "latest")
    except DamagedRecordError as damage:  # of this rollout; the others are to be listed
        error = Failure(boundary="store", type=type(damage).__name__, message=str(damage))
    row = {
        "rollout_id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "attempts": len(attempts),
        "reward": find_final_reward(spans),
        "seconds": None if rollout.end_time is None else rollout.end_time - rollout.start_time,
        "resources_id": rollout.resources_id,
        "input": rollout.input,
        "error": None if error is None else f"{error.boundary}: {error.type}: {error.message}",
    }

    def add(cells: object) -> None:
        # What is no JSON object is the plugin's failure, and not that of the table.
        given: Any = json.loads(json.dumps(cells, allow_nan=False))
        if given != cells or not isinstance(given, dict):
            raise TypeError(f"expected a dict of JSON, column -> value; got {cells!r}")
        columns = cast("dict[str, Any]", given)
        if taken := row.keys() & columns:
            raise ValueError(f"columns of these names are there already: {sorted(taken)}")
        json.dumps(columns, ensure_ascii=False).encode()  # a lone surrogate cannot be printed
        row.update(columns)

    about = {"rollout": rollout, "attempts": list(attempts), "spans": list(spans)}
    await hooks.call("rollout_columns", add, **about)
    return row


def _short(value: object) -> str:
    """A cell: numbers rounded, long texts cut with a mark; ``--json`` has all."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"
