"""``agl bench``: measure the parts of agl on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl.cli.shared import note, print_json, print_table
from agl.env import LightningEnvVar

if TYPE_CHECKING:
    from agl_bench.workloads import Workload

WORKLOAD_NAMES = (
    *("minimal", "medium", "mid-high", "large", "long-queue", "in-flight", "heavy-trace"),
    "all",
)


@click.group("bench")
def command() -> None:
    """Measure the parts of agl on this machine."""


@command.command("store")
@click.option("--url", help="A store server of 0.3's wire, with nothing queued. [default: our own]")
@click.option(
    "--token",
    envvar=LightningEnvVar.AGL_SERVER_TOKEN.value,
    show_envvar=True,
    help="Bearer token of the server at --url.",
)
@click.option(
    "--workload",
    "names",
    multiple=True,
    default=("medium",),
    type=click.Choice(WORKLOAD_NAMES),
    help="May be repeated.",
)
@click.option(
    "--way",
    type=click.Choice(["wire", "single", "otlp", "batch", "turn"]),
    help="How runners speak to the server. [default: the fastest that it knows]",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    help="How many rollouts. [default: fewer than published, for a run of under a minute]",
)
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Cut each run short after this.")
@click.option("--seed", default=0, help="Seed for the random draws.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def store(
    url: str | None,
    token: str | None,
    names: tuple[str, ...],
    way: Any,
    tasks: int | None,
    seconds: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run the store workloads that 0.3 published, and check each rollout.

    Without --url the server is agl store, on an SQLite file in a temporary folder. Ways: wire (as
    0.3's client: a number, then a span), single (one request per span), otlp, batch, turn. "Of
    ideal" compares with runners that always have work, "of perfect" with a store that takes no
    time.
    """
    import tempfile

    from agl.errors import StoreError
    from agl.utils.logs import stderr_console
    from agl_bench.load import LoadProgram
    from agl_bench.measure import COLUMNS, cells, measured
    from agl_bench.server import own_command, served
    from agl_bench.workloads import WORKLOADS

    reports: list[dict[str, Any]] = []
    wrong: list[str] = []

    def measure(workload: "Workload", address: str, token: str | None = None) -> None:
        about: dict[str, Any] = {"way": way, "seed": seed, "max_seconds": seconds}
        load = LoadProgram(workload, address, tasks, token=token, **about)
        if load.tasks != workload.tasks:
            note(f"{workload.name}: {load.tasks} tasks; published are {workload.tasks}")
        with stderr_console().status(f"measuring {workload.name} ..."):
            report, problems = measured(load)
        reports.append(report)
        wrong.extend(problems)

    for name in list(WORKLOADS) if "all" in names else dict.fromkeys(names):
        if url is not None:
            measure(WORKLOADS[name], url, token)
            continue
        # A file for each, so that none pays for the records of another.
        with tempfile.TemporaryDirectory(prefix="agl-bench-") as folder:
            where = Path(folder)
            with served(own_command(where / "store.db"), where / "server.log") as address:
                measure(WORKLOADS[name], address)
    if as_json:
        print_json(reports)
    else:
        table = [list(COLUMNS.values()), *map(cells, reports)]
        print_table(["", *[""] * len(reports)], zip(*table, strict=True))
    if wrong:
        raise StoreError(f"{len(wrong)} rollouts are wrong; the first: {wrong[0]}")
