"""``agl rollouts``: what a store was asked to do, and how it went."""

from pathlib import Path
from typing import Any, get_args

import click

from agl.cli.shared import note, print_json, print_table
from agl.store.base import LightningStore
from agl.store.queries import check_statuses
from agl.types import RolloutMode
from agl.utils.text import shorten
from agl_inspect.readable import read_undamaged
from agl_inspect.runs.lookup import store_and_run
from agl_records.final_rewards import FinalReward, final_reward
from agl_views.tables.rollout_table import Listed, Wanted, listed
from agl_views.tables.stores import open_store, store_options

COLUMNS = ["rollout_id", "status", "mode", "attempts", "reward", "seconds", "input", "error"]
LAST = 20
SORTS = ("time", "reward", "seconds")


@click.command("rollouts")
@click.argument("run", required=False)
@store_options
@click.option(
    "--last",
    "--limit",
    type=click.IntRange(min=1),
    help=f"At most so many, the newest last; default: {LAST}.",
)
@click.option("--all", "show_all", is_flag=True, help="All of them.")
@click.option("--status", "statuses", multiple=True, help="Only of this status; may be repeated.")
@click.option("--failed", is_flag=True, help="Only those that failed or were cancelled.")
@click.option("--mode", type=click.Choice(get_args(RolloutMode)), help="Only of this mode.")
@click.option("--step", type=int, help="Only those of this step of an algorithm.")
@click.option("--task", help="Only those whose task has this text in it, as JSON.")
@click.option(
    "--reward-below", "below", type=float, help="Only those with a reward below this one."
)
@click.option(
    "--reward-above", "above", type=float, help="Only those with a reward above this one."
)
@click.option("--sort", type=click.Choice(SORTS), default="time", help="The greatest comes last.")
@click.option("--reverse", "is_least", is_flag=True, help="The least comes last.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    run: str | None,
    path: Path | None,
    url: str | None,
    last: int | None,
    show_all: bool,
    statuses: tuple[str, ...],
    failed: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List the rollouts of a store, with reward and reason of failure; the newest last.

    RUN is a run's id or a part of it, and the others of its store are left out; or a folder or a
    store file. Without it and a store, the newest run under agl-runs.
    """
    chosen = [*statuses, *(["failed", "cancelled"] if failed else [])] or None
    check_statuses("rollouts", chosen)
    where, run_id = store_and_run(run, (path, url))
    if show_all and last is not None:
        raise click.UsageError(f"--all and --last {last} say two things; give one")
    most = None if show_all else last or LAST

    async def read(store: LightningStore) -> tuple[list[dict[str, Any]], Listed]:
        found = await listed(store, Wanted(chosen, run=run_id, most=most, **filters))
        rows: list[dict[str, Any]] = []
        for rollout in reversed(found.rollouts):
            attempts = await store.query_attempts(rollout.rollout_id)
            error = attempts[-1].error if attempts else None
            given = final_reward(rollout)
            end = rollout.end_time
            rows.append(
                {
                    "rollout_id": rollout.rollout_id,
                    "status": rollout.status,
                    "mode": rollout.mode,
                    "attempts": len(attempts),
                    "reward": given.reward,
                    "reward_on_the_way": given.on_the_way,
                    "seconds": None if end is None else end - rollout.start_time,
                    "resources_id": rollout.resources_id,
                    "input": rollout.input,
                    "error": error and f"{error.boundary}: {error.type}: {error.message}",
                }
            )
        return rows, found

    rows, found = read_undamaged(open_store(*where), read)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            row["reward"] = FinalReward(row["reward"], row["reward_on_the_way"]).text()
        print_table(COLUMNS, [[_short(row[name]) for name in COLUMNS] for row in rows], cut=True)
    if found.total is not None and len(rows) < found.total:
        note(f"{len(rows)} of {found.total} rollouts; --last and --all show more")
    elif found.total is None and len(rows) == most:
        note(f"{len(rows)} rollouts, and perhaps more; --last and --all show them")
    if found.note:
        note(found.note)


def _short(value: object) -> str:
    """A cell: numbers rounded, long texts cut with a mark; ``--json`` has all."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return shorten(text)
