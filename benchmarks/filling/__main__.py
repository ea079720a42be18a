"""Make a large store, to measure what reads it.

    python benchmarks/filling PATH [--rollouts 1000000] [--spans-per-rollout 10] [--json]

Its records are those of runs that learn slowly: calls with messages and tokens, tools, rewards,
accounts, failures by several causes. Beside it lie the folders of its runs, with metrics. A million
rollouts of ten spans take some minutes and 15 GB.
"""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from agl.cli.shared import note, print_json

sys.path.insert(0, str(Path(__file__).parents[1]))

from filling.world import Shape
from filling.writing import fill_store


@click.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--rollouts", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option(
    "--spans-per-rollout", "spans", default=10, show_default=True, type=click.IntRange(2, 1000)
)
@click.option("--runs", default=4, show_default=True, type=click.IntRange(1), help="How many.")
@click.option(
    "--long-trace", default=50_000, show_default=True, help="Spans of one rollout more; 0: none."
)
@click.option("--seed", default=0, show_default=True, help="Of the random draws.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def main(
    path: Path, rollouts: int, spans: int, runs: int, long_trace: int, seed: int, as_json: bool
) -> None:
    """Make a large store at PATH."""
    shape = Shape(rollouts, spans, runs, seed=seed)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("rollouts", total=rollouts)
        made = fill_store(path, shape, long_trace, lambda done: bar.update(task, completed=done))
    if as_json:
        print_json(made)
        return
    seconds, gigabytes = made["seconds"], made["bytes"] / 1e9
    note(f"{made['rollouts']} rollouts, {made['spans']} spans, {gigabytes:.2f} GB, {seconds:.0f} s")
    if made["long_rollout"]:
        note(f"the long trace is that of rollout {made['long_rollout']}")


if __name__ == "__main__":
    main()
