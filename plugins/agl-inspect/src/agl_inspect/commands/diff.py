"""``agl diff``: two rollouts of one task beside each other."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from agl.cli.shared import print_json, read_and_close
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.utils.text import printable, shorten
from agl_inspect.figures import mean, rounded
from agl_inspect.show.id_lookup import attempt_number, find, task_id
from agl_inspect.show.rollout import cut
from agl_records.final_rewards import FinalReward
from agl_runs.result import failure_text
from agl_views.explanations.rollout_view import Shown, show, text_of
from agl_views.explanations.trace_reader import Part
from agl_views.explanations.turns import Turn, num_common, turns
from agl_views.tables.stores import open_store, store_options

WIDTH = 80
"""Characters of a line; a wider terminal is not waited for."""
LONGEST = 400
"""Characters of a turn."""
AROUND = 1
"""Common turns that are shown before the conversations part."""


ROWS = {
    "status": "status",
    "mode": "mode",
    "step": "step",
    "attempt": "attempt",
    "attempts": "of attempts",
    "reward": "reward",
    "credit": "credit, mean",
    "advantage": "advantage, mean",
    "calls": "model calls",
    "trained": "of them trained",
    "tokens": "tokens sampled",
    "seconds": "seconds",
    "model_seconds": "in model calls",
    "resources": "resources",
}
"""Figure of a side -> its name in the table."""


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--any-task", is_flag=True, help="Also if they are of two tasks.")
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
        subjects = await find(store, first), await find(store, second)
        for name, subject in zip((first, second), subjects, strict=True):
            if not subject.rollout_id:
                raise ConfigError(f"{name!r} is a {subject.kind}; agl diff compares two rollouts")
        a, b = [
            await show(store, one.rollout_id, await attempt_number(store, one), read=Part())
            for one in subjects
        ]
        ids = [one.rollout_id for one in subjects]
        if ids[0] == ids[1] and a.attempt == b.attempt:
            which = f", attempt {a.attempt.sequence_id}" if a.attempt and a.num_attempts > 1 else ""
            raise ConfigError(f"both are rollout {ids[0]!r}{which}; give two")
        if a.rollout.input != b.rollout.input and not any_task:
            tasks = [cut(printable(text_of(one.rollout.input)), 60) for one in (a, b)]
            raise ConfigError(
                f"rollouts {ids[0]!r} and {ids[1]!r} are of two tasks: {tasks[0]} and {tasks[1]}. "
                f"--any-task compares them all the same; agl show {task_id(a.rollout.input)} lists "
                "those of the first one's"
            )
        said = turns(a.calls), turns(b.calls)
        return Pair(a.rollout.input, (_figures(a), _figures(b)), said, num_common(said))

    pair = read_and_close(open_store(path, url), read)
    if as_json:
        print_json(pair.as_json())
    else:
        lines = [*_figure_lines(pair, full), "", *_conversations(pair, full)]
        click.echo("\n".join(lines))


@dataclass(frozen=True)
class Pair:
    """Two rollouts of a task."""

    task: Any
    figures: tuple[dict[str, Any], dict[str, Any]]
    """What each was, took and earned; JSON values."""
    turns: tuple[list[Turn], list[Turn]]
    num_common: int
    """Turns that both conversations begin with."""

    def as_json(self) -> dict[str, Any]:
        sides = zip(self.figures, self.turns, strict=True)
        return {
            "task_id": task_id(self.task),
            "task": self.task,
            "common_messages": self.num_common,
            "rollouts": [{**one, "turns": list(map(asdict, said))} for one, said in sides],
        }


def _figures(shown: Shown) -> dict[str, Any]:
    rollout, attempt = shown.rollout, shown.attempt
    outcomes = [
        shown.outcomes[call.call_id] for call in shown.calls if call.call_id in shown.outcomes
    ]
    took = [call.end_time - call.start_time for call in shown.calls
            if call.start_time is not None and call.end_time is not None]  # fmt: skip
    is_accounted = shown.explanation.algorithm is not None  # else nobody trained, or gave credit
    return {
        "rollout_id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "step": (rollout.metadata or {}).get("step"),
        "attempt": attempt.sequence_id if attempt else None,
        "attempts": shown.num_attempts,
        "reward": shown.given.reward,
        "reward_on_the_way": shown.given.on_the_way,
        "credit": mean(one.reward for one in outcomes if is_accounted),
        "advantage": mean(one.advantage for one in outcomes),
        "calls": len(shown.calls),
        "trained": sum(one.excluded is None for one in outcomes) if is_accounted else None,
        "tokens": sum(len(call.response_token_ids or ()) for call in shown.calls),
        "seconds": attempt.end_time - attempt.start_time if attempt and attempt.end_time else None,
        "model_seconds": sum(took),  # which may overlap
        "resources": rollout.resources_id,
        "error": failure_text(attempt.error if attempt else None),
    }


def _figure_lines(pair: Pair, full: bool) -> Iterator[str]:
    task = cut(printable(text_of(pair.task)), 10_000 if full else 200)
    yield from textwrap.wrap(f"task {task_id(pair.task)}: {' '.join(task.split())}", WIDTH)
    yield ""
    yield f"  {'':<16}{'A':<28}{'B':<28}".rstrip()
    ids = [one["rollout_id"] for one in pair.figures]
    yield f"  {'rollout':<16}{ids[0]:<28}{ids[1]:<28}".rstrip()
    for name, label in ROWS.items():
        first, second = (_cell(one, name) for one in pair.figures)
        yield f"{' ' if first == second else '*'} {label:<16}{first:<28}{second:<28}".rstrip()
    for letter, one in zip("AB", pair.figures, strict=True):
        if one["error"]:
            error = " ".join(printable(one["error"]).split())
            yield from textwrap.wrap(f"  {letter} failed: {error}", WIDTH, subsequent_indent="    ")


def _conversations(pair: Pair, full: bool) -> Iterator[str]:
    (turns_a, turns_b), same = pair.turns, pair.num_common
    if not turns_a and not turns_b:
        yield "no conversation: neither has a model call that was recorded"
        return
    if same == len(turns_a) == len(turns_b):
        yield f"conversation: all {same} messages are the same"
        return
    yield f"conversation: the first {same} messages are the same; then they part"
    for number in range(max(same - AROUND, 0), same):
        yield from _turn("  ", number, turns_a[number], full)
    for letter, turns_ in (("A", turns_a), ("B", turns_b)):
        yield ""
        if same >= len(turns_):
            yield f"{letter} ends here"
        for number in range(same, len(turns_)):
            yield from _turn(f"{letter} ", number, turns_[number], full)


def _turn(letter: str, number: int, turn: Turn, full: bool) -> Iterator[str]:
    text = turn.text if full else cut(turn.text, LONGEST)
    head = f"{letter}{number + 1:>3} {turn.role:<10}"
    indent = f"{letter}{'':<{len(head) - len(letter)}}"
    for line in text.split("\n"):
        wrapped = textwrap.wrap(
            line, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False
        )
        yield from (one.rstrip() for one in wrapped or [head])
        head = indent


def _cell(figures: dict[str, Any], name: str) -> str:
    value = figures[name]
    if name == "reward":
        return FinalReward(value, figures["reward_on_the_way"]).text("none")
    return shorten("none" if value is None else str(*rounded([value])), 26)
