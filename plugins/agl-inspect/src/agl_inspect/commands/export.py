"""``agl export``: what a store holds, as a file that other programs train on."""

import time
from pathlib import Path
from typing import Literal, get_args

import click

from agl.cli.shared import note, read_and_close
from agl.plugins.build import build_component
from agl_inspect.exchange.records import COLUMNS, Export, Format, Pairing
from agl_inspect.exchange.store_dump import write_store
from agl_inspect.exchange.writers import Write, open_writer
from agl_records.calls.matching import compile_match
from agl_records.credit import CreditRule
from agl_views.tables.file_store import FileStore
from agl_views.tables.stores import open_store, store_options

PROGRESS_SECONDS = 2.0


@click.command("export", context_settings={"show_default": True})
@click.option(
    "--as",
    "--to",
    "form",
    required=True,
    type=click.Choice([*get_args(Format), "store"]),
    help="What to write; store is all that a file holds, for agl import.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="A .jsonl or .parquet file; without it, JSON lines on standard output.",
)
@store_options
@click.option("--credit", default="final", help="The rule that gives rewards.")
@click.option("--agent-match", help="Regular expression: only calls of these agents.")
@click.option("--mode", type=click.Choice(["train", "val", "test"]), help="Only such rollouts.")
@click.option("--min-reward", type=float, help="Leave out what got less, or nothing; not for dpo.")
@click.option(
    "--pairs",
    type=click.Choice(get_args(Pairing)),
    default="best",
    help="dpo: of one prompt the best against the worst answer, or every two.",
)
@click.option(
    "--min-gap",
    type=click.FloatRange(min=0),
    default=0.0,
    help="dpo: rewards of a pair differ by more than this.",
)
def command(
    form: Format | Literal["store"],
    out: Path | None,
    path: Path | None,
    url: str | None,
    credit: str,
    agent_match: str | None,
    mode: str | None,
    min_reward: float | None,
    pairs: Pairing,
    min_gap: float,
) -> None:
    """Write training rows, triplets, messages, fine-tuning samples, pairs or ATIF's trajectories.

    Only rollouts that succeeded are used, and of each the last attempt that did. A whole store has
    all.
    """
    if form == "store":
        store = None if url else open_store(path, None)
        if not isinstance(store, FileStore):
            raise click.UsageError(
                "--as store reads a file: a server tells neither the keys of rollouts nor which "
                "kinds of documents it has. Export with --path where the server's file lies; it "
                "may be served meanwhile"
            )
        if any(given is not None for given in (mode, agent_match, min_reward)):
            raise click.UsageError("--as store writes all of a file: it takes --path and -o only")
        if out is not None and out.suffix != ".jsonl":
            raise click.UsageError(f"{out}: --as store writes JSON lines; give a .jsonl file")
        with open_writer(out, {}) as write:
            read_and_close(store, lambda _: write_store(store, write))
        return
    if form == "atif" and out is not None and out.suffix != ".jsonl":
        raise click.UsageError(f"{out}: trajectories are JSON lines; give a .jsonl file")
    if form == "dpo" and min_reward is not None:
        raise click.UsageError("--min-reward has no meaning for dpo; use --min-gap")
    rule = build_component(credit, group="agl.credits", expected_type=CreditRule, where="--credit")
    match = compile_match(agent_match, "--agent-match")
    with open_writer(out, COLUMNS.get(form, {})) as write:
        store = open_store(path, url)
        export = Export(form, store, rule, match, mode, min_reward, pairs, min_gap)
        read_and_close(store, lambda _: _write(export, write))
    note(_summary(export, out))


async def _write(export: Export, write: Write) -> None:
    said = time.monotonic()
    async for records in export.records():
        for record in records:
            write(record)
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            note(f"{export.num_rollouts} rollouts read, {export.num_records} records")


def _summary(export: Export, out: Path | None) -> str:
    names = {"dpo": "pairs", "sft": "samples", "messages": "conversations", "atif": "trajectories"}
    what = names.get(export.form, export.form)
    text = f"{export.num_records} {what} of {export.num_rollouts} rollouts"
    text += f" in {out}" if out else ""
    reasons = [f"{n} {reason}" for reason, n in export.left_out.most_common() if n]
    if reasons:
        left = "tasks that gave none" if export.form == "dpo" else "calls left out"
        text += f"; {left}: {', '.join(reasons)}"
    if export.num_others:
        text += f"; rollouts of judges and canaries left out: {export.num_others}"
    return text
