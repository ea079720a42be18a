"""``agl export``: what a store holds, as a file that other programs train on."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import click

from agl.cli.shared import note, read_and_close
from agl.errors import DamagedRecordError
from agl.plugins.build import build_component
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import Rollout
from agl_inspect.exchange.reading import CANARY, JUDGES, Read, read_rollout
from agl_inspect.exchange.records import (
    COLUMNS,
    Account,
    Format,
    Options,
    Pairing,
    pairs_of,
    records_of,
)
from agl_inspect.exchange.store_dump import write_store
from agl_inspect.exchange.writers import Write, open_writer
from agl_learning.collect.task_order import digest
from agl_records.calls.matching import compile_match
from agl_records.credit import CreditRule
from agl_views.tables.file_store import FileStore
from agl_views.tables.stores import open_store, store_options

PROGRESS_SECONDS = 2.0


@click.command("export")
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
@click.option("--credit", default="final", show_default=True, help="The rule that gives rewards.")
@click.option("--agent-match", help="Regular expression: only calls of these agents.")
@click.option("--mode", type=click.Choice(["train", "val", "test"]), help="Only such rollouts.")
@click.option("--min-reward", type=float, help="Leave out what got less, or nothing; not for dpo.")
@click.option(
    "--pairs",
    type=click.Choice(get_args(Pairing)),
    default="best",
    show_default=True,
    help="dpo: of one prompt the best against the worst answer, or every two.",
)
@click.option(
    "--min-gap",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
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
        if url is not None:
            raise click.UsageError(
                "--as store reads a file: a server tells neither the keys of rollouts nor which "
                "kinds of documents it has. Export with --path where the server's file lies; it "
                "may be served meanwhile"
            )
        if any(given is not None for given in (mode, agent_match, min_reward)):
            raise click.UsageError("--as store writes all of a file: it takes --path and -o only")
        if out is not None and out.suffix != ".jsonl":
            raise click.UsageError(f"{out}: --as store writes JSON lines; give a .jsonl file")
        store = open_store(path, None)
        assert isinstance(store, FileStore)
        with open_writer(out, {}) as write:
            read_and_close(store, lambda _: write_store(store, write))
        return
    if form == "atif" and out is not None and out.suffix != ".jsonl":
        raise click.UsageError(f"{out}: trajectories are JSON lines; give a .jsonl file")
    if form == "dpo" and min_reward is not None:
        raise click.UsageError("--min-reward has no meaning for dpo; use --min-gap")
    options = Options(
        credit=build_component(
            credit, group="agl.credits", expected_type=CreditRule, where="--credit"
        ),
        agent_match=compile_match(agent_match, "--agent-match"),
        min_reward=min_reward,
        pairing=pairs,
        min_gap=min_gap,
    )
    with open_writer(out, COLUMNS.get(form, {})) as write:
        store = open_store(path, url)
        export = Export(store, write, form, options, mode)
        read_and_close(store, lambda _: export.run())
    note(export.summary(out))


@dataclass
class Export:
    """One export: from a store to a writer."""

    store: LightningStore
    write: Write
    form: Format
    options: Options
    mode: str | None
    """Only rollouts of this mode; None for all."""
    account: Account = field(default_factory=Account)
    others: int = 0
    _said: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Read the store page by page and write."""
        await (self._pairs() if self.form == "dpo" else self._records())

    def summary(self, out: Path | None) -> str:
        """What was written, and what was not."""
        is_dpo = self.form == "dpo"
        what = {
            "dpo": "pairs",
            "sft": "samples",
            "messages": "conversations",
            "atif": "trajectories",
        }.get(self.form, self.form)
        text = f"{self.account.records} {what} of {self.account.rollouts} rollouts"
        text += f" in {out}" if out else ""
        reasons = [f"{n} {reason}" for reason, n in self.account.left_out.most_common() if n]
        if reasons:
            left = "tasks that gave none" if is_dpo else "calls left out"
            text += f"; {left}: {', '.join(reasons)}"
        if self.others:
            text += f"; rollouts of judges and canaries left out: {self.others}"
        return text

    async def _records(self) -> None:
        async for rollout in each_record(self.store.query_rollouts):
            if self._is_wanted(rollout):
                read = await self._read(rollout)
                for record in records_of(read, self.form, self.options, self.account):
                    self.write(record)
                self._progress()

    def _is_wanted(self, rollout: Rollout) -> bool:
        """Whether it is of the mode; what was no answer of the agent's model never is."""
        is_other = not {CANARY, JUDGES}.isdisjoint(rollout.metadata or {})
        self.others += is_other
        return not is_other and self.mode in (None, rollout.mode)

    async def _pairs(self) -> None:
        """The ids of siblings first, then the data of one task at a time."""
        tasks: defaultdict[str, list[str]] = defaultdict(list)
        async for rollout in each_record(self.store.query_rollouts, status_in=["succeeded"]):
            if self._is_wanted(rollout):
                tasks[digest([rollout.input])].append(rollout.rollout_id)
        for ids in tasks.values():
            rollouts = await self.store.query_rollouts(rollout_id_in=ids)
            siblings = [await self._read(rollout) for rollout in rollouts]
            for record in pairs_of(siblings, self.options, self.account):
                self.write(record)
            self._progress()

    async def _read(self, rollout: Rollout) -> Read:
        options = self.options
        try:
            return await read_rollout(self.store, rollout, options.credit, options.agent_match)
        except DamagedRecordError:  # of a span; nobody can say what it was about
            self.account.left_out["malformed"] += 1
            return Read(rollout, [], [])

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            note(f"{self.account.rollouts} rollouts read, {self.account.records} records")
