"""One rollout of a configuration, for real: agent, tracer, gateway, and what the algorithm serves.

The algorithm starts as it always does, so a model that it serves is served and its resources are
published; the first rollout that it queues is run, and then everything is stopped. Only the store
(in memory) and the strategy (one runner, in this process) are not those of the file, and what the
algorithm writes goes to a folder that is removed.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agl.adapter import TraceAdapter
from agl.algorithm import Algorithm
from agl.baseline import Baseline
from agl.config import ComponentPlan
from agl.errors import AglError, ConfigError
from agl.execution.shared_memory import SharedMemoryExecutionStrategy
from agl.runconfig import CheckedConfig, ConfigFile, check_config
from agl.schema import schema_of
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.trainer import Trainer
from agl.types import Attempt, Rollout, Span


@dataclass
class Trial:
    """What came of it."""

    algorithm: str
    options: dict[str, Any]
    """Of the algorithm, as configured."""
    adapter: TraceAdapter[Any] | None = None
    rollout: Rollout | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    spans: list[Span] = field(default_factory=list[Span])
    error: str | None = None
    """Why algorithm or runner stopped before the rollout had ended."""


def try_once(file: ConfigFile, task: int = 0) -> Trial:
    """Run one rollout.

    Args:
        file: The configuration; checked as ``agl run`` does.
        task: Which of the training tasks.

    Raises:
        ConfigError: The configuration is wrong, or has no such task; nothing was started.
        PluginError: A component is unknown or does not load; nothing was started.
    """
    with tempfile.TemporaryDirectory(prefix="agl-doctor-") as folder:
        checked = check_config(file, run_dir=Path(folder), dry=file.config.algorithm is None)
        train = _one_task(checked, task)
        trial = _run(checked, train, None, Path(folder))
        if trial.rollout is None and checked.val:
            # Evaluations would come first, and train nothing; some algorithms insist on them.
            trial = _run(checked, train, checked.val[:1], Path(folder))
        return trial


def _one_task(checked: CheckedConfig, task: int) -> list[Any] | None:
    if checked.train is None:
        return None
    if task >= len(checked.train):
        where = checked.file.where("train")
        raise ConfigError(f"{where}: has {len(checked.train)} tasks; there is no task {task}")
    return [checked.train[task]]


def _run(
    checked: CheckedConfig, train: list[Any] | None, val: list[Any] | None, folder: Path
) -> Trial:
    plans = checked.components
    plan = plans.get("algorithm")
    algorithm: Algorithm = _writing_to(folder, plan).build() if plan else Baseline()
    name = plan.component.name if plan and plan.component else type(algorithm).__name__
    store = InMemoryLightningStore()
    built = {key: plans[key].build() for key in ("tracer", "gateway", "adapter") if key in plans}
    trainer = Trainer(
        algorithm=algorithm,
        max_rollouts=1,
        initial_resources=checked.resources,
        tracer=built["tracer"],
        adapter=built.get("adapter"),
        store=store,
        strategy=SharedMemoryExecutionStrategy(graceful_delay=1.0),
        llm_proxy=built.get("gateway"),
        hooks=checked.hooks,
    )
    trial = Trial(name, plan.options if plan else {})
    try:
        trainer.fit(checked.agent, train, val_dataset=val)
    except AglError as error:
        trial.error = str(error)
    asyncio.run(_read(store, trial))
    try:
        trial.adapter = algorithm.get_adapter()
    except AglError as error:
        trial.error = trial.error or str(error)
    return trial


def _writing_to(folder: Path, plan: ComponentPlan[Any]) -> ComponentPlan[Any]:
    takes = callable(plan.target) and any(
        option.name == "run_dir" for option in schema_of(plan.target).options
    )
    if not takes:
        return plan
    return replace(plan, options={**plan.options, "run_dir": str(folder / "algorithm")})


async def _read(store: LightningStore, trial: Trial) -> None:
    tried: Sequence[Rollout] = [
        rollout
        for rollout in await store.query_rollouts()
        if await store.get_latest_attempt(rollout.rollout_id) is not None
    ]
    if tried:
        trial.rollout = tried[0]
        trial.attempts = list(await store.query_attempts(tried[0].rollout_id))
        trial.spans = list(await store.query_spans(tried[0].rollout_id))
    await store.close()
