"""``agl prompts``: the candidates of a prompt run, what changed, and the curve."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agl_apo.history import History


@click.command("prompts")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--url", help="Address of a store server; its token is in AGL_SERVER_TOKEN.")
@click.option("--name", help="Only the run of this run_name.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(run: Path | None, url: str | None, name: str | None, as_json: bool) -> None:
    """Show how prompts were optimised: tree, difference from the first prompt, curve, result.

    RUN is a run's id, a part of it, its folder or its store file; without it, the newest run under
    agl-runs.
    """
    from agl.cli.shared import print_json, read_and_close
    from agl.errors import ConfigError
    from agl_apo.history import read_histories
    from agl_views.tables.stores import open_store

    histories = read_and_close(open_store(run, url), read_histories)
    if name is not None:
        names = ", ".join(repr(history.run) for history in histories) or "none"
        histories = [history for history in histories if history.run == name]
        if not histories:
            raise ConfigError(f"--name: the store has no prompt run {name!r}; there is {names}")
    if not histories:
        raise ConfigError("the store has no prompt run; algorithms 'apo' and 'gepa' make them")
    if as_json:
        print_json([history.as_json() for history in histories])
        return
    for history in histories:
        _show(history)


def _show(history: "History") -> None:
    from rich.console import Console

    from agl.cli.shared import print_table

    console = Console(highlight=False)
    console.print(f"{history.algorithm} {history.run!r}, {history.evaluations} evaluations\n")
    console.print(_tree(history), soft_wrap=not console.is_terminal)
    console.print()
    columns = ["round", "leader", "mean reward", "evaluations", ""]
    print_table(
        columns,
        [
            [
                number,
                row["leader"],
                f"{row['leader_mean']:.3f}",
                row["evaluations"],
                "#" * round(30 * row["leader_mean"]),
            ]
            for number, row in enumerate(history.rounds, 1)
        ],
    )
    for line in [*_diff(history), "", *_outcome(history)]:
        click.echo(line)


def _tree(history: "History") -> object:
    from rich.text import Text
    from rich.tree import Tree

    trees: dict[str | None, Tree] = {}
    for node in history.nodes.values():
        parts = [node.name]
        if node.mean is not None:
            parts.append(f"{node.mean:.3f} over {node.num_evaluations}")
        if node.dropped:
            parts.append(f"dropped: {node.dropped}")
        if node.copies:
            parts.append(f"copies from train tasks {node.copies}")
        if node.name == history.best and history.result is not None:
            parts.append("<- best")
        parent = trees.get(node.parent)
        label = Text("  ".join(parts))
        trees[node.name] = Tree(label) if parent is None else parent.add(label)
    return next(iter(trees.values()), "")


def _diff(history: "History") -> list[str]:
    """From the first prompts to the accepted ones, or to the challenger that was not accepted."""
    from difflib import unified_diff

    from agl_views.runs.prompt_runs import SEED

    shown = history.best
    if shown == SEED and history.rounds:
        shown = history.rounds[-1]["leader"]
    lines: list[str] = []
    for name, text in history.nodes[SEED].texts.items():
        new = history.nodes[shown].texts[name]
        lines += unified_diff(
            text.splitlines(),
            new.splitlines(),
            f"{name} ({SEED})",
            f"{name} ({shown})",
            lineterm="",
        )
    return ["", *lines] if lines else []


def _outcome(history: "History") -> list[str]:
    if history.result is None:
        return ["the run has not ended; started again with its store, it goes on"]
    if history.decision is None:
        return ["no candidate was better than the first prompt in the search; it stays"]
    return [history.decision.verdict, f"best prompts: {history.result['run_dir']}"]
