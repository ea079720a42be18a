"""``agl diff``: two rollouts of one task beside each other."""

from pathlib import Path

import click

from agl.cli.shared import print_json, read_and_close
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl_inspect.show.id_lookup import attempt_number, find
from agl_inspect.show.pair import Pair, pair_lines, show_pair
from agl_views.tables.stores import open_store, store_options


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--any-task", is_flag=True, help="Also where they are of two tasks.")
@click.option("--full", is_flag=True, help="Long messages whole.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    first: str,
    second: str,
    any_task: bool,
    full: bool,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show where rollouts A and B of one task part, and what each earned.

    A and B are ids of rollouts or of attempts, or the beginnings of ids; of a rollout it is the
    last attempt. A star marks the lines that are not the same.
    """

    async def read(store: LightningStore) -> Pair:
        a, b = await find(store, first), await find(store, second)
        for name, subject in ((first, a), (second, b)):
            if not subject.rollout_id:
                raise ConfigError(f"{name!r} is a {subject.kind}; agl diff compares two rollouts")
        numbers = await attempt_number(store, a), await attempt_number(store, b)
        ids = a.rollout_id, b.rollout_id
        return await show_pair(store, *ids, numbers=numbers, force=any_task)

    pair = read_and_close(open_store(path, url), read)
    if as_json:
        print_json(pair.as_json())
    else:
        click.echo("\n".join(pair_lines(pair, full=full)))
