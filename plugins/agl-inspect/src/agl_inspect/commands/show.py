"""``agl show``: a rollout, an attempt, a model call, a span, a task or a run as people read it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from agl.cli.shared import note, print_json
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl_inspect.readable import read_undamaged
from agl_inspect.show.id_lookup import Subject, attempt_number, find, newest
from agl_inspect.show.rollout import MOST_CALLS, rollout_lines, show_span, span_lines
from agl_views.explanations.rollout_view import show
from agl_views.explanations.trace_reader import Part
from agl_views.tables.stores import open_store, store_options

OPTIONS = {
    "rollout": ["--attempt", "--step", "--tokens", "--full"],
    "attempt": ["--step", "--tokens", "--full"],
    "span": ["--step", "--tokens", "--full"],
    "task": ["--full"],
    "run": list[str](),
}
"""Kind of what is shown -> which of these say something of it."""

LEARNED = ("held-out", "reward", "curve", "warning", "best", "model")
"""What is shown of the summary that the run had at its end: it costs no look at all rollouts."""


@click.command("show")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="This attempt; default: the last.")
@click.option("--step", type=int, help="As this step of the algorithm saw it; default: the last.")
@click.option("--tokens", is_flag=True, help="Tokens too: ids, log-probabilities, of a call masks.")
@click.option("--full", is_flag=True, help="Long messages and traces whole.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    name: str | None,
    attempt: int | None,
    step: int | None,
    tokens: bool,
    full: bool,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show what ID names: what was said, what became of each answer, errors, times.

    ID is that of a rollout, an attempt, a model call (its span, or the id of the response), a span,
    a task or a run, or the beginning of one, with or without "ro-". ROLLOUT/SPAN names a span of
    one rollout. Without ID it is the newest rollout that failed, else the newest.
    """

    async def read(store: LightningStore) -> tuple[Subject, Any, Iterator[str]]:
        if name is None:
            subject, which = await newest(store)
            note(f"{subject.name}, {which}")
        else:
            subject = await find(store, name)
        given = {"--attempt": attempt, "--step": step, "--tokens": tokens, "--full": full}
        has = OPTIONS[subject.kind]
        if wrong := [one for one in given if given[one] not in (None, False) and one not in has]:
            others = f"; it has {', '.join(has)}" if has else ""
            raise ConfigError(f"{', '.join(wrong)} does not go with {subject.text}{others}")
        match subject.kind:
            case "span":
                ids = subject.rollout_id, subject.attempt_id, subject.span_id
                span = await show_span(store, *ids, step)
                return subject, span, span_lines(span, tokens=tokens, full=full)
            case "task":
                from agl_inspect.show.task import show_task, task_lines

                task = await show_task(store, subject.task)
                return subject, task, task_lines(task, full=full)
            case "run":
                from agl_inspect.report.text import summary_text
                from agl_inspect.show.run import run_lines, show_run

                run = await show_run(store, subject.name)
                width = shutil.get_terminal_size().columns
                return subject, run, run_lines(run, summary_text(run.facts, width, names=LEARNED))
            case _:
                number = attempt or await attempt_number(store, subject)
                part = None if full else Part(most=MOST_CALLS)
                shown = await show(store, subject.rollout_id, number, step, read=part)
                return subject, shown, rollout_lines(shown, tokens=tokens, full=full)

    subject, shown, lines = read_undamaged(open_store(path, url), read)
    if as_json:
        print_json({"kind": subject.kind, **shown.as_json()})
    else:
        click.echo("\n".join(lines))
