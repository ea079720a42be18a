"""A few rollouts of a configuration, for real: agent, tracer, gateway, and the algorithm's model.

The algorithm starts as it always does, so a model that it serves is served and its resources are
published; the first rollout that it queues is run alone, the next few at once, and then everything
is stopped. Only the store (in memory) and the strategy (one runner, in this process) are not those
of the file, its hooks are told of attempts only, so that no tracker shows the trial as a run, and
what the algorithm writes goes to a folder that is removed.
"""

import asyncio
import inspect
import logging
import os
import re
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from agl.agent.function import FunctionalLitAgent
from agl.algorithm.adapter import TraceAdapter
from agl.algorithm.base import Algorithm
from agl.env import LightningEnvVar, resolve_int_env_var
from agl.errors import AglError, ConfigError
from agl.execution.base import ExecutionEvent, ThreadingEvent
from agl.execution.shared_memory import SharedMemoryExecutionStrategy
from agl.plugins.build import ComponentPlan
from agl.plugins.hooks import Hook
from agl.plugins.schema import schema_of
from agl.runner import LitAgentRunner
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.types import LLM, Attempt, AttemptedRollout, NamedResources, PromptTemplate, Rollout, Span
from agl_inspect.doctor.grades import constant_prompts
from agl_records.training_data import TrainedModel
from agl_runs.baseline import Baseline
from agl_runs.config.file import CheckedConfig, ConfigFile, check_config
from agl_runs.mixed_calls import Ran, ran, silent

AT_ONCE = 4
"""So many rollouts are run at once, where the algorithm queues so many."""
HELD_SECONDS = 1.0
"""An agent that keeps the event loop for longer is told of."""
QUIET_SECONDS = 1.0
"""No more rollouts come when none was queued for so long."""
OF_ATTEMPTS = (
    "on_rollout_start",
    "on_trace_start",
    "on_trace_end",
    "on_rollout_end",
    "on_attempt_end",
)
"""Hooks that belong to what is tried: one may give the reward."""


@dataclass
class Trial:
    """What came of it."""

    algorithm: str
    options: dict[str, Any]
    """Of the algorithm, as configured."""
    learns: bool = True
    """Whether the algorithm learns: ``Baseline`` only measures."""
    needs_calls: bool = True
    """Whether it learns from model calls alone: prompt optimisers learn from rewards, too."""
    has_train: bool = True
    adapter: TraceAdapter[Any] | None = None
    model: TrainedModel | None = None
    """The one that the algorithm trains, where it publishes one."""
    rollout: Rollout | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    spans: list[Span] = field(default_factory=list[Span])
    takes_model: bool = True
    num_unattributed: int = 0
    """Calls that came to an address of the gateway which is no rollout's."""
    num_together: int = 0
    """How many rollouts succeeded that ran at once."""
    num_silent: int = 0
    """How many of them had no call, while others beside them, and the first one, had some."""
    final_rewards: list[float] = field(default_factory=list[float])
    """Of all rollouts of the first one's task that have one."""
    constant_prompts: list[str] = field(default_factory=list[str])
    """Names of those that the rollout got, and that are the same for every task."""
    held: float = 0.0
    """For how many seconds a rollout held the event loop; 0 if only for moments."""
    shares_process: bool = False
    """Whether a run of this configuration runs several rollouts at once in a process."""
    error: str | None = None
    """Why algorithm or runner stopped before the rollout had ended."""


def try_once(file: ConfigFile, task: int = 0) -> Trial:
    """Run a rollout of a training task; a wrong configuration, or no such task, starts nothing."""
    with tempfile.TemporaryDirectory(prefix="agl-doctor-") as folder:
        checked = check_config(file, run_dir=Path(folder), dry=file.config.algorithm is None)
        train = checked.train
        if train is not None:
            if task >= len(train):
                where = checked.file.where("train")
                raise ConfigError(f"{where}: has {len(train)} tasks; there is no task {task}")
            train = [train[task]] * (1 + AT_ONCE)
        checked.check_fit()
        # Evaluations would come first, and train nothing; some algorithms insist on them.
        trial = _run(checked, train, None, Path(folder))
        if trial.rollout is None and checked.val:
            trial = _run(checked, train, checked.val, Path(folder))
        return trial


class _OfAttempts(Hook):
    """Calls of a hook only what it has for attempts.

    A tracker learns of a run when it starts, and would show a trial among those of a team.
    """

    def __init__(self, hook: object) -> None:
        for name in dir(hook):
            if name.startswith("__"):
                continue
            method = inspect.getattr_static(hook, name)
            marked = getattr(method, "agl_impl", None) or {}
            if (marked.get("specname") or name) in OF_ATTEMPTS:
                setattr(self, name, getattr(hook, name))


class _Few(LitAgentRunner[Any]):
    """Runs one rollout, then a few at once, then ends."""

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        event, end = event or ThreadingEvent(), ThreadingEvent()
        self.max_rollouts = self.concurrency = 1
        await super().iter(event=event)
        self.max_rollouts = self.concurrency = AT_ONCE
        watching = asyncio.create_task(self._end_when_quiet(event, end))
        try:
            await super().iter(event=end)
        finally:
            watching.cancel()

    async def _end_when_quiet(self, event: ExecutionEvent, end: ExecutionEvent) -> None:
        open_statuses = ["queuing", "requeuing", "preparing", "running"]
        quiet, pause = 0.0, 0.1
        while quiet < QUIET_SECONDS and not event.is_set():
            await asyncio.sleep(pause)
            waiting = await self.get_store().query_rollouts(status_in=cast(Any, open_statuses))
            quiet = 0.0 if waiting else quiet + pause
        end.set()


@contextmanager
def _measuring_holds(trial: Trial) -> Generator[None]:
    """Take what asyncio logs of an agent that holds the event loop; the findings say it."""

    def is_other(record: logging.LogRecord) -> bool:
        # Of the text: a record in which a secret was hidden has nothing else.
        held = re.match(r"Executing (.*) took ([\d.]+) seconds", record.getMessage(), re.DOTALL)
        if held and "AgentCall." in held[1] and float(held[2]) > HELD_SECONDS:
            trial.held = max(trial.held, float(held[2]))
        return held is None

    before = os.environ.get("PYTHONASYNCIODEBUG")
    os.environ["PYTHONASYNCIODEBUG"] = "1"  # loops that are made from now on measure it
    logging.getLogger("asyncio").addFilter(is_other)
    try:
        yield
    finally:
        logging.getLogger("asyncio").removeFilter(is_other)
        del os.environ["PYTHONASYNCIODEBUG"]
        if before is not None:
            os.environ["PYTHONASYNCIODEBUG"] = before


def _run(
    checked: CheckedConfig, train: Sequence[Any] | None, val: Sequence[Any] | None, folder: Path
) -> Trial:
    plan = checked.components.get("algorithm")
    algorithm: Algorithm = Baseline()
    if plan:
        skips_evaluation = val is None and checked.val is not None
        algorithm = _for_trial(plan, folder, skips_evaluation).build()
    name = plan.component.name if plan and plan.component else type(algorithm).__name__
    trial = Trial(
        name,
        plan.options if plan else {},
        learns=not isinstance(algorithm, Baseline),
        needs_calls=PromptTemplate not in (algorithm.publishes or ()),
        has_train=train is not None,
        takes_model=takes_model(checked.agent),
        shares_process=_shares_process(checked),
    )

    store = InMemoryLightningStore()
    trainer = checked.trainer(
        checked.build("tracer", "gateway", "adapter"),
        store,
        **{"algorithm": algorithm, "runner": _Few, "max_rollouts": None, "concurrency": None},
        strategy=SharedMemoryExecutionStrategy(graceful_delay=1.0),
        hooks=[_OfAttempts(hook) for hook in checked.hooks],
    )
    try:
        with _measuring_holds(trial):
            trainer.fit(checked.agent, train, val_dataset=val)
    except AglError as error:
        trial.error = str(error)
    if trainer.llm_proxy is not None:
        trial.num_unattributed = trainer.llm_proxy.num_unattributed
    asyncio.run(_read(store, trial, checked.resources or {}))
    try:
        trial.adapter = algorithm.get_adapter()
    except AglError as error:
        trial.error = trial.error or str(error)
    return trial


def takes_model(agent: object) -> bool:
    """Whether an agent can get a model: no, if it is a function without a parameter for one."""
    kinds = {"llm", "resource", "resources"}
    return not isinstance(agent, FunctionalLitAgent) or any(
        slot.kind in kinds for slot in agent.injector.slots
    )


def _shares_process(checked: CheckedConfig) -> bool:
    config = checked.file.config
    given = config.runner.get("concurrency") if isinstance(config.runner, dict) else None
    concurrency = config.concurrency or given
    if (resolve_int_env_var(LightningEnvVar.AGL_CONCURRENCY, concurrency, 1) or 1) > 1:
        return True
    strategy = checked.components["strategy"]
    is_threads = strategy.target is SharedMemoryExecutionStrategy
    return is_threads and strategy.options.get("n_runners", 1) > 1


def _for_trial(
    plan: ComponentPlan[Any], folder: Path, skips_evaluation: bool
) -> ComponentPlan[Any]:
    options = schema_of(plan.target).options if callable(plan.target) else ()
    takes = {option.name for option in options}
    # A bar for steps that never come would stand between the findings.
    here = {"run_dir": str(folder / "algorithm"), "show_progress": False}
    given = {**plan.options, **{name: here[name] for name in takes & here.keys()}}
    if skips_evaluation:
        given.pop("evaluation", None)
    return replace(plan, options=given)


async def _read(store: LightningStore, trial: Trial, given: NamedResources) -> None:
    tried = [one for one in await store.query_rollouts() if isinstance(one, AttemptedRollout)]
    if tried:
        trial.rollout = tried[0]
        trial.attempts = list(await store.query_attempts(tried[0].rollout_id))
        trial.spans = list(await store.query_spans(tried[0].rollout_id))
        if tried[0].resources_id is not None:
            snapshot = await store.get_resources_by_id(tried[0].resources_id)
            got = snapshot.resources if snapshot else {}
            # The model of the LLM that is the algorithm's, and not the file's.
            names = {
                one.model
                for name, one in got.items()
                if isinstance(one, LLM) and one != given.get(name)
            }
            trial.model = TrainedModel(name=names.pop()) if len(names) == 1 else None
            trial.constant_prompts = constant_prompts(got)
        of_task = [rollout for rollout in tried if rollout.input == tried[0].input]
        trial.final_rewards = [one.reward for one in of_task if one.reward is not None]
        alone, *together = [await _ran(store, rollout) for rollout in tried]
        succeeded = [one for one in together if one is not None]
        trial.num_together = sum(
            any(a is not b and a.begin < b.end and b.begin < a.end for b in succeeded)
            for a in succeeded
        )
        if alone is not None and alone.calls:
            trial.num_silent = len(silent(succeeded))
    await store.close()


async def _ran(store: LightningStore, rollout: AttemptedRollout) -> Ran | None:
    attempt = rollout.attempt
    if attempt.status != "succeeded":
        return None
    spans = await store.query_spans(rollout.rollout_id, attempt.attempt_id)
    return ran(rollout.rollout_id, attempt, spans)
