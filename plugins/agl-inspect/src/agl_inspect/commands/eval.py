"""``agl eval``: how good an agent is on a data set, several times over, without training."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from agl.cli.shared import note, print_json, print_table, read_and_close
from agl.errors import ConfigError, RunError
from agl.plugins import registry
from agl.plugins.recorder import RunRequest
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.utils.logs import setup_logging
from agl.utils.text import shorten
from agl_inspect.figures import mean, number
from agl_inspect.runs.lookup import find_run
from agl_learning.collect.pass_at_k import PASSED, over_copies
from agl_learning.trainer.base import Training
from agl_learning.trainer.online import OnlineTraining
from agl_runs.config.file import ConfigFile, check_config, load_config, load_config_of_run
from agl_runs.files import make_private_folder
from agl_runs.training import new_run

SHOWN = 48
"""Characters of a task in the table; ``--json`` has all."""
CHECKPOINTS = "checkpoints"


@dataclass
class OfTask:
    """What came of the rollouts of one task."""

    task: Any
    rollouts: int = 0
    succeeded: int = 0
    rewards: list[float] = field(default_factory=list[float])


@dataclass
class Evaluation:
    """What came of all."""

    tasks: dict[int, OfTask] = field(default_factory=dict[int, OfTask])
    failures: Counter[str] = field(default_factory=Counter[str])
    """Boundary and type of an attempt's error -> how many rollouts ended so."""
    examples: dict[str, str] = field(default_factory=dict[str, str])
    """The first message of each."""


@click.command("eval", context_settings={"show_default": True})
@click.argument("target", metavar="FILE|RUN|CHECKPOINT")
@click.argument("overrides", nargs=-1, metavar="[FILE|KEY=VALUE]...")
@click.option("--copies", type=click.IntRange(min=1), default=4, help="How often each task runs.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(target: str, overrides: tuple[str, ...], copies: int, as_json: bool) -> None:
    """Run each held-out task several times, and train nothing.

    FILE is a configuration: of an algorithm that trains a model, that model as it begins; of any
    other, the agent as it is. Of a RUN it is the newest checkpoint. Tasks are those of val, or
    where there are none of train. Reports mean reward, mean@n and pass@k (a reward of 1 passes) and
    failures by cause. Rollouts are in the store of a run of their own. The exit code is 1 where
    none succeeded.
    """
    file, start = _find(target, ("run_dir=null", *overrides))
    file, is_training = _evaluating(target, file, start, copies, overrides)
    run = new_run(file.config)
    folder = run.folder or Path()
    checked = check_config(file, run_dir=folder)
    tasks = checked.val or checked.train
    if not tasks:
        raise ConfigError("there is nothing to evaluate on: the configuration has no val or train")
    if not checked.val:
        note("there is no val: these are the tasks of train")
    setup_logging()
    components = checked.build()
    algorithm = components["algorithm"]
    if is_training:
        algorithm.is_over = partial(_ends_at_once, algorithm)
    components["strategy"].prepare()
    make_private_folder(folder)
    note(f"run folder: {folder}")
    store = checked.components["store"].build()
    trainer = checked.trainer(components, store, run=run.run_id, run_dir=folder, max_rollouts=None)
    trainer.fit(checked.agent, tasks if is_training else None, val_dataset=tasks)
    found = read_and_close(store, lambda store: _read(store, run.run_id or ""))
    _report(found, copies, run, as_json)
    if found.tasks and not any(one.succeeded for one in found.tasks.values()):
        raise RunError("no rollout succeeded")


def _find(target: str, overrides: Sequence[str]) -> tuple[ConfigFile, str | None]:
    """The configuration, and the run or checkpoint to begin from."""
    path = Path(target)
    if path.suffix in (".yaml", ".yml"):
        return load_config(path, overrides), None
    is_checkpoint = path.is_dir() and path.resolve().parent.name == CHECKPOINTS
    run = find_run(str(path.resolve().parents[1]) if is_checkpoint else target, (None, None))
    return load_config_of_run(run, overrides), target if is_checkpoint else run.folder


def _evaluating(
    target: str, file: ConfigFile, start: str | None, copies: int, overrides: Sequence[str]
) -> tuple[ConfigFile, bool]:
    """The configuration with what an evaluation needs; whether its algorithm serves a model."""
    spec: Any = file.config.algorithm
    name = spec if isinstance(spec, str) else spec.get("type")
    algorithm = registry.load(registry.GROUPS["algorithm"], name)
    is_training = isinstance(algorithm, type) and issubclass(algorithm, Training)
    if start is not None and not (is_training and issubclass(algorithm, OnlineTraining)):
        raise ConfigError(
            f"{target!r} is of the algorithm {name!r}, of which no checkpoint can be served here. "
            "Serve or name what it made in a configuration, and give that FILE"
        )
    given = ["run_dir=null", *overrides]
    if is_training:
        given += [f"algorithm.evaluation.copies={copies}", "algorithm.run_dir=null"]
        # Nothing is trained; a run that has had all its steps must be taken all the same.
        if start is not None:
            given += [f"algorithm.resume_from={json.dumps(start)}", "algorithm.steps=1000000000"]
    else:
        note(f"algorithm {name} is left out: the agent is evaluated as it is")
        given.append(f"algorithm={json.dumps({'type': 'baseline', 'n_epochs': copies})}")
    return _find(target, given)[0], is_training


def _ends_at_once(algorithm: Training) -> bool:
    """In the place of ``is_over``: no step is done, and what was evaluated before is again."""
    algorithm.session.val_rewards.clear()
    return True


async def _read(store: LightningStore, run_id: str) -> Evaluation:
    found = Evaluation()
    async for rollout in each_record(store.query_rollouts, run=run_id, mode="val"):
        about = rollout.metadata or {}
        number = about.get("group", about.get("index", 0))
        one = found.tasks.setdefault(number, OfTask(rollout.input))
        one.rollouts += 1
        if rollout.status == "succeeded":
            one.succeeded += 1
            one.rewards += [] if rollout.reward is None else [rollout.reward]
            continue
        attempts = await store.query_attempts(rollout.rollout_id)
        error = attempts[-1].error if attempts else None
        cause = rollout.status if error is None else f"{error.boundary}: {error.type}"
        found.failures[cause] += 1
        found.examples.setdefault(cause, "" if error is None else error.message)
    found.tasks = dict(sorted(found.tasks.items()))
    return found


def _report(found: Evaluation, copies: int, run: RunRequest, as_json: bool) -> None:
    tasks = list(found.tasks.values())
    metrics = {
        "reward/mean": mean(reward for one in tasks for reward in one.rewards),
        **over_copies([one.rewards for one in tasks], copies),
        "rollouts": sum(one.rollouts for one in tasks),
        "failed": sum(found.failures.values()),
    }
    if as_json:
        print_json(
            {
                "run": run.run_id,
                "metrics": metrics,
                "failures": dict(found.failures.most_common()),
                "tasks": [vars(one) for one in tasks],
            }
        )
        return
    print_table(
        ["task", "rollouts", "failed", "mean reward", "passed"],
        [
            [
                shorten(json.dumps(one.task, ensure_ascii=False, default=str), SHOWN),
                one.rollouts,
                one.rollouts - one.succeeded or "",
                number(mean(one.rewards)),
                sum(reward >= PASSED for reward in one.rewards),
            ]
            for one in tasks
        ],
    )
    for name, value in metrics.items():
        click.echo(f"{name:12} {number(value)}")
    for cause, times in found.failures.most_common():
        click.echo(f"failed       {times} x {cause}, as in: {found.examples[cause]}")
