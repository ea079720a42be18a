"""``agl launch``: write the file with which a cluster starts a run."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

ONLY_FOR = {"hours": ("slurm",), "grace": ("slurm", "k8s"), "image": ("k8s",)}
"""Option -> the systems whose files have a place for it; other options are for all."""


@click.command("launch")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option("--slurm", is_flag=True, help="Write a batch script for sbatch.")
@click.option(
    "--k8s",
    is_flag=True,
    help="Write Jobs for kubectl apply, or a RayJob for KubeRay where the strategy is ray.",
)
@click.option("--skypilot", is_flag=True, help="Write a task for sky launch.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write it here, not on standard output."
)
@click.option(
    "--name",
    help="Name of the jobs, the claim, the Service and the Secret. [default: FILE's folder]",
)
@click.option(
    "--machines",
    type=click.IntRange(1),
    default=1,
    help="How many machines run runners; `runners` of FILE counts on each.",
)
@click.option("--cpus", type=click.IntRange(1), default=4, help="Per machine.")
@click.option("--memory", type=click.IntRange(1), default=8, help="GiB per machine.")
@click.option(
    "--gpus",
    default="0",
    metavar="[TYPE:]NUMBER",
    help="For the algorithm; under Slurm and SkyPilot machines are equal, so each gets them; "
    "workers of Ray do if `strategy.resources` has `gpu`. SkyPilot needs the type, as H100:1.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0, 10_000, min_open=True),
    default=4.0,
    help="Time limit of a Slurm job, after which it queues again.",
)
@click.option(
    "--grace",
    type=click.IntRange(1),
    default=300,
    help="How many seconds a run gets to stop before its cluster or the time limit kills it.",
)
@click.option("--image", default="agl-runner:latest", help="For Kubernetes: with /project.")
@click.option(
    "--no-check",
    is_flag=True,
    help="Write also what agl run would refuse here, as if modules or data are only where it runs.",
)
@click.pass_context
def command(
    context: click.Context,
    file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    **options: Any,
) -> None:
    """Write the file with which a cluster starts the run of FILE; nothing is started.

    Machines find each other by themselves. Tokens and other secrets stay out of the file. A job
    that the cluster starts again goes on with its run.
    """
    from agl.cli.shared import note
    from agl_launch.render import render, write

    chosen = [one for one in ("slurm", "k8s", "skypilot") if options.pop(one)]
    if len(chosen) != 1:
        raise click.UsageError("say for what: one of --slurm, --k8s and --skypilot")
    (system,) = chosen
    for name, systems in ONLY_FOR.items():
        if system not in systems and context.get_parameter_source(name) != ParameterSource.DEFAULT:
            used = " and ".join(f"--{one}" for one in systems)
            raise click.UsageError(f"--{name} is for {used}; leave it out with --{system}")
    text = render(system, file, overrides, options)
    if output is None:
        click.echo(text, nl=False)
    else:
        write(text, output)
        note(f"wrote {output}; its first lines say how to start it")
