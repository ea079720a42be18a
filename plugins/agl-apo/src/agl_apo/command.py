"""``agl prompts``: the candidates of a prompt run, what changed, and the curve."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_views.runs.prompt_runs import Candidate, PromptRun


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
    from agl_views.tables.stores import open_store

    runs = read_and_close(open_store(run, url), _read)
    if name is not None:
        names = ", ".join(repr(one.name) for one in runs) or "none"
        runs = [one for one in runs if one.name == name]
        if not runs:
            raise ConfigError(f"--name: the store has no prompt run {name!r}; there is {names}")
    if not runs:
        raise ConfigError("the store has no prompt run; algorithms 'apo' and 'gepa' make them")
    if as_json:
        print_json(list(map(_as_json, runs)))
        return
    for one in runs:
        _show(one)


async def _read(store: "LightningStore") -> "list[PromptRun]":
    """The prompt runs of a store, in the order in which they began."""
    from agl.store.queries import each_record
    from agl_views.runs.prompt_runs import PromptRuns

    found = PromptRuns()
    await found.take_entries(store)
    async for rollout in each_record(store.query_rollouts):
        found.take([rollout])
    return list(found.runs.values())


def _made(run: "PromptRun") -> "list[Candidate]":
    """The candidates; one of which there is only an evaluation is none yet."""
    return [one for one in run.candidates.values() if one.texts or one.critique or one.dropped]


def _rounds(run: "PromptRun") -> list[dict[str, Any]]:
    names = ("leader_mean", "evaluations")
    return [
        {"leader": one["beam"][0], **{name: one[name] for name in names}}
        for _, one in sorted(run.rounds.items())
    ]


def _num_evaluations(run: "PromptRun") -> int:
    """Stored, those of the decision among them."""
    return sum(e.is_counted for one in run.candidates.values() for e in one.evaluations.values())


def _as_json(run: "PromptRun") -> dict[str, Any]:
    told = ("parent", "texts", "dropped", "copies", "critique", "mean")
    nodes = [
        {
            "candidate_id": one.name,
            **{name: getattr(one, name) for name in told},
            "evaluations": one.num_evaluations,
        }
        for one in _made(run)
    ]
    return {
        "run": run.name,
        "algorithm": run.algorithm,
        "nodes": nodes,
        "rounds": _rounds(run),
        "evaluations": _num_evaluations(run),
        "decision": run.decision,
        "result": run.result,
        "best": run.best or "seed",
    }


def _show(run: "PromptRun") -> None:
    from rich.console import Console

    from agl.cli.shared import print_table

    console = Console(highlight=False)
    console.print(f"{run.algorithm} {run.name!r}, {_num_evaluations(run)} evaluations\n")
    console.print(_tree(run), soft_wrap=not console.is_terminal)
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
            for number, row in enumerate(_rounds(run), 1)
        ],
    )
    for line in [*_diff(run), "", *_outcome(run)]:
        click.echo(line)


def _tree(run: "PromptRun") -> object:
    from rich.text import Text
    from rich.tree import Tree

    trees: dict[str | None, Tree] = {}
    for node in _made(run):
        parts = [node.name]
        if node.mean is not None:
            parts.append(f"{node.mean:.3f} over {node.num_evaluations}")
        if node.dropped:
            parts.append(f"dropped: {node.dropped}")
        if node.copies:
            parts.append(f"copies from train tasks {node.copies}")
        if node.name == run.best:
            parts.append("<- best")
        parent = trees.get(node.parent)
        label = Text("  ".join(parts))
        trees[node.name] = Tree(label) if parent is None else parent.add(label)
    return next(iter(trees.values()), "")


def _diff(run: "PromptRun") -> list[str]:
    """From the first prompts to the accepted ones, or to the challenger that was not accepted."""
    from difflib import unified_diff

    from agl_views.runs.prompt_runs import PromptRuns

    shown = run.best or PromptRuns.SEED
    if shown == PromptRuns.SEED:
        shown = run.leader
    lines: list[str] = []
    for name, text in run.candidates[PromptRuns.SEED].texts.items():
        new = run.candidates[shown].texts[name]
        lines += unified_diff(
            text.splitlines(),
            new.splitlines(),
            f"{name} ({PromptRuns.SEED})",
            f"{name} ({shown})",
            lineterm="",
        )
    return ["", *lines] if lines else []


def _outcome(run: "PromptRun") -> list[str]:
    from agl_apo.decision import Decision

    if run.result is None:
        return ["the run has not ended; started again with its store, it goes on"]
    if run.decision is None:
        return ["no candidate was better than the first prompt in the search; it stays"]
    return [Decision(**run.decision).verdict, f"best prompts: {run.result['run_dir']}"]
