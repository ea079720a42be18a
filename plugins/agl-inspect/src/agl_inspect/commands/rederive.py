"""``agl rederive``: a stored run with another reward, credit rule or adapter."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any, cast

import click

from agl.cli.shared import note, print_json, print_table
from agl.errors import ConfigError
from agl.utils.text import shorten
from agl_inspect.exchange.deriving import Component, Derivation, How, Reward
from agl_inspect.exchange.writers import open_writer
from agl_inspect.figures import mean, rounded
from agl_inspect.runs.lookup import MOST_TASKS, copy_of_store, find_run
from agl_runs.config.overrides import parse_yaml
from agl_runs.files import make_private_folder
from agl_runs.folders import STORE, default_folder, new_run_id
from agl_runs.user_code import put_on_path
from agl_sqlite import SqliteLightningStore
from agl_views.tables.stores import store_options

RECORDS = "records.jsonl"
SHOWN = 60


@click.command("rederive")
@click.argument("run_id", metavar="RUN")
@click.option("--reward", metavar="MODULE:FUNCTION", help="Function that rewards a rollout.")
@click.option(
    "--credit",
    help="The rule that says which call gets how much of it: a name, or {type: ..., ...}.",
)
@click.option("--adapter", help="Adapter that makes records of the spans; by default rows.")
@click.option("--mode", type=click.Choice(["train", "val", "test"]), help="Only such rollouts.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="The folder of the new run; by default one under agl-runs.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    run_id: str,
    reward: str | None,
    credit: str | None,
    adapter: str | None,
    mode: str | None,
    to: Path | None,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a new run of RUN's rollouts, with another reward, credit rule or adapter.

    The agent is not run, and RUN is not changed. The new run has a store of its own with the
    rollouts that succeeded, which agl export and agl runs compare take, and records.jsonl with what
    the adapter makes of them. Its record says what it was derived from, and how.
    A reward function takes any of task, private, messages, spans, rollout and reward by name, and
    returns a number, several by name, or None.
    """
    if reward is None and credit is None and adapter is None:
        raise click.UsageError("what is to be another? Give --reward, --credit or --adapter")
    run = find_run(run_id, (path, url))
    put_on_path(os.getcwd())
    how = How(
        None if reward is None else Reward(reward),
        None if credit is None else _component(credit, "--credit"),
        _component(adapter or "rows", "--adapter"),
    )
    new_id = new_run_id()
    folder = to or default_folder(new_id)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--to: {str(folder)!r} is there already, and not empty")
    with copy_of_store(run, (path, url)) as (source, place):
        derivation = Derivation(source, run, how, mode)

        async def derive() -> None:
            await derivation.look()
            make_private_folder(folder)
            store = SqliteLightningStore(folder / STORE, durability="process")
            try:
                with open_writer(folder / RECORDS, {}) as write:
                    at = str(folder.absolute())
                    await derivation.write(store, new_id, at, place, write)
            finally:
                await store.close()
                await source.close()

        try:
            asyncio.run(derive())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    found = _found(derivation, new_id, folder)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _component(text: str, where: str) -> Component:
    value = parse_yaml(text, where)
    if not isinstance(value, str | dict):
        raise ConfigError(f"{where}: expected a name or {{type: ..., ...}}, got {text!r}")
    return cast("Component", value)


def _found(derivation: Derivation, run_id: str, folder: Path) -> dict[str, Any]:
    tasks = derivation.tasks.values()
    return {
        "run": run_id,
        "derived_from": derivation.run.run_id,
        **derivation.how.written(),
        "folder": str(folder),
        "rollouts": derivation.num_rollouts,
        "records": derivation.num_records,
        "left_out": dict(derivation.left_out),
        "without_reward": derivation.problems,
        "tasks": [
            {
                "task": one.task,
                "rollouts": len(one.now),
                "before": mean(one.before),
                "now": mean(one.now),
                "credit_before": mean(one.credits_before),
                "credit_now": mean(one.credits),
            }
            for one in tasks
        ],
    }


def _print(found: dict[str, Any]) -> None:
    tasks = found["tasks"]
    columns = ["reward", "reward now", "difference", "of a call", "of a call now"]
    print_table(["task", "rollouts", *columns], [_row(one) for one in tasks[:MOST_TASKS]])
    if len(tasks) > MOST_TASKS:
        note(f"{MOST_TASKS} of {len(tasks)} tasks; --json has all")
    problems = found["without_reward"]
    for rollout_id, why in list(problems.items())[:3]:
        note(f"no reward for rollout {rollout_id}: {why}")
    if len(problems) > 3:
        note(f"and none for {len(problems) - 3} more")
    left = ", ".join(f"{number} {reason}" for reason, number in found["left_out"].items() if number)
    records = f"{found['records']} records of {found['rollouts']} rollouts"
    note(
        f"{records} in {Path(found['folder']) / RECORDS}" + (f"; left out: {left}" if left else "")
    )
    click.echo(f"run {found['run']}, derived from {found['derived_from']}, in {found['folder']}")


def _row(one: dict[str, Any]) -> list[Any]:
    task, (before, now) = str(one["task"]), (one["before"], one["now"])
    difference = None if before is None or now is None else now - before
    numbers = (before, now, difference, one["credit_before"], one["credit_now"])
    return [shorten(task, SHOWN), one["rollouts"], *rounded(numbers)]
