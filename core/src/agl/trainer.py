"""The trainer: wires all components together and runs them."""

import asyncio
import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from inspect import isclass
from pathlib import Path
from typing import Any, TypeVar

from agl.agent.base import LitAgent, Runner
from agl.algorithm.adapter import TraceAdapter
from agl.algorithm.base import Algorithm, FastAlgorithm, RunContext
from agl.algorithm.gateway import Gateway
from agl.algorithm.run_result import RunResult
from agl.errors import ConfigError, StoppedError
from agl.execution.base import ExecutionEvent, ExecutionStrategy
from agl.execution.coroutines import call_in_daemon_thread
from agl.execution.signals import GracefulShutdown
from agl.plugins.build import ComponentPlan, Given, build_hooks
from agl.plugins.hooks import HookCaller, routes_of
from agl.plugins.parts import adapter_maker, plan_part
from agl.plugins.recorder import Recording, RunRequest, find_recorder
from agl.runner.sandbox import grader_of
from agl.store.base import LightningStore
from agl.tracer.base import Tracer
from agl.types import Dataset, NamedResources
from agl.utils.catalogue import refuse_keywords
from agl.utils.checks import check_dataset, check_numbers, check_resources, one_of
from agl.utils.logs import setup_logging, tell
from agl.utils.secrets import learn_keys

logger = logging.getLogger(__name__)

T = TypeVar("T")
Datasets = tuple[Dataset[Any] | None, Dataset[Any] | None]
Spec = Given[T] | None


class Trainer:
    """Runs an algorithm and its runners to the end.

    Every component may be given as an instance, a class, a function that makes one, a name
    (``"apo"``), a dotted path, or a dict of ``type`` and options.

    Args:
        algorithm: What learns. ``fit`` without one runs ``Baseline`` and says that nothing is
            learned.
        n_runners: How many runners; left out if a strategy says so itself.
        max_rollouts: Each runner ends after so many.
        concurrency: How many rollouts each runner runs at once; None reads ``AGL_CONCURRENCY``, and
            is 1 without it. See ``LitAgentRunner`` for what more of them ask of the agent.
        initial_resources: Published as the first snapshot, before the algorithm runs.
        tracer: How spans are collected; ``otel`` if left out.
        adapter: What the algorithm reads spans with; if left out, the one that it asks for. A dict
            without ``type`` holds options of that one.
        store: Where all meet; in memory if left out.
        runner: What claims and runs rollouts; ``LitAgentRunner`` if left out. A dict without
            ``type`` holds options of that one.
        strategy: Where things run; ``cs`` (processes) if left out.
        port: Of the store server, for strategy ``cs``.
        llm_proxy: The gateway; if left out, the installed one for algorithms that need it.
        run_dir: Folder for what the algorithm writes; None takes that of the algorithm's own
            options, or ``agl-runs/<id of the run>``.
        run: Id of the run; with one and no store, the store is the file ``store.db`` in its folder,
            which stays open. None makes one, or takes that of the run in the folder. A
            ``RunRequest`` says ``run_dir``, ``resume`` and ``force`` as well.
        resume: Go on with the run that ``run`` names, where it ended. What differs is named first.
        force: Go on although options, data or code make another run of it.
        hooks: Objects with methods named as hooks, see ``agl.plugins.hookspecs``; or names, or
            dicts of ``type`` and options.
        n_workers: The name of ``n_runners`` in the guides of 0.3.

    Raises:
        ConfigError: An option is wrong.
        PluginError: A component is unknown or does not load.
    """

    shows_result = True
    """Whether what a run came to is written on standard error, where agl's log is."""
    result = RunResult()
    """Of the last run that has ended here, one that failed, too."""

    @refuse_keywords("Trainer")
    def __init__(
        self,
        *,
        algorithm: Spec[Algorithm] = None,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        concurrency: int | None = None,
        initial_resources: NamedResources | None = None,
        tracer: Spec[Tracer] = None,
        adapter: Spec[TraceAdapter[Any]] = None,
        store: Spec[LightningStore] = None,
        runner: Spec[Runner[Any]] = None,
        strategy: Spec[ExecutionStrategy] = None,
        port: int | None = None,
        llm_proxy: Spec[Gateway] = None,
        run_dir: str | Path | None = None,
        run: str | RunRequest | None = None,
        resume: bool = False,
        force: bool = False,
        hooks: object | Sequence[object] | None = None,
        n_workers: int | None = None,
    ) -> None:
        n_runners = one_of("Trainer", n_runners=n_runners, n_workers=n_workers)
        said = {"max_rollouts": max_rollouts, "concurrency": concurrency}
        check_numbers("Trainer", whole=True, optional=True, least=1, n_runners=n_runners, **said)
        self.max_rollouts = max_rollouts
        check_resources("Trainer: initial_resources", initial_resources)
        self.initial_resources = initial_resources
        self.hooks = build_hooks(hooks)
        self._hook_caller = HookCaller(self.hooks)
        self.algorithm: Algorithm | None = (
            None if algorithm is None else plan_part("algorithm", algorithm).build()
        )
        self.tracer: Tracer = plan_part("tracer", tracer).build()
        wanted = {"n_runners": n_runners, "port": port}
        self.strategy: ExecutionStrategy = plan_part("strategy", strategy, said=wanted).build()
        if not isinstance(run, RunRequest):
            run = RunRequest(run, resume, None if run_dir is None else Path(run_dir), force)
        given = run.folder and run.folder.absolute()
        folder = self.algorithm.folder_of_options(given) if self.algorithm else given
        self.run_request = replace(run, folder=folder, makes_folder=folder == given)
        self._recorder = find_recorder()
        self._recorder.check(self.run_request)
        if store is not None:
            self.store = plan_part("store", store).build()
        self.n_runners = self.strategy.n_runners
        self.llm_proxy: Gateway | None = None if llm_proxy is None else _gateway(llm_proxy)
        self.adapter: TraceAdapter[Any] | None = None
        if adapter is not None:
            # Options without a type are for the adapter that the algorithm asks for.
            default = (self.algorithm or Algorithm).default_adapter
            self.adapter = plan_part("adapter", adapter, default=default).build()
        on_stuck = "raise" if self.strategy.replaces_runners else "continue"
        about: dict[str, Any] = {"tracer": self.tracer, "on_stuck": on_stuck}
        self._runner = plan_part("runner", runner, said=said, **about)
        if isclass(self._runner.target):
            self._runner.build()  # refuses senseless values here and not in every runner

    @cached_property
    def store(self) -> LightningStore:
        """Where all meet; one that nobody gave is made when it is asked for."""
        is_here = self.strategy.runs_algorithm
        default = self._recorder.default_store(self.run_request) if is_here else None
        return plan_part("store", default).build()

    @refuse_keywords("Trainer.fit")
    def fit(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> RunResult:
        """Train ``agent`` on the first dataset, and measure it with the other.

        Returns when the algorithm has finished and everything has stopped.

        Returns:
            What the run came to; the same is written on standard error.

        Raises:
            ConfigError: Something is wrong with the request or a dataset; nothing was started.
            AlgorithmError: The algorithm raised; everything else was stopped.
            RunnerCrashError: Runners died and could not be replaced.
            StoppedError: It stopped before its end, as Ctrl+C or SIGTERM asked it to, say.
        """
        if self.algorithm is None and self.strategy.runs_algorithm:
            logger.warning(
                "Trainer.fit: no algorithm was given, so nothing is learned: running Baseline. "
                "Pass Trainer(algorithm=...); see: agl plugins"
            )
        return self._run(agent, self._algorithm(), (train_dataset, val_dataset))

    @refuse_keywords("Trainer.dev")
    def dev(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        dev_dataset: Dataset[Any] | None = None,
    ) -> RunResult:
        """Dry-run the whole loop with a fast algorithm, ``Baseline`` if none was given.

        See ``fit``; ``dev_dataset`` is the name of ``train_dataset`` in the guides of 0.3.

        Raises:
            ConfigError: The trainer's algorithm is not a ``FastAlgorithm``.
        """
        train_dataset = one_of("Trainer", train_dataset=train_dataset, dev_dataset=dev_dataset)
        algorithm = self._algorithm()
        if not isinstance(algorithm, FastAlgorithm):
            raise ConfigError(
                f"Trainer.dev runs fast algorithms only, and {type(algorithm).__name__} is none. "
                "Leave the algorithm out to run Baseline, or call fit()"
            )
        return self._run(agent, algorithm, (train_dataset, val_dataset))

    def _algorithm(self) -> Algorithm:
        if not self.strategy.runs_algorithm:
            return self.algorithm or _RunsElsewhere()
        return self.algorithm or plan_part("algorithm", "baseline").build()

    def _run(self, agent: LitAgent[Any], algorithm: Algorithm, datasets: Datasets) -> RunResult:
        if not isinstance(agent, LitAgent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Trainer: the agent must be a LitAgent; got {type(agent).__name__}. "
                "Decorate your function with @agl.rollout, or subclass agl.LitAgent"
            )
        check_dataset("Trainer: train_dataset", datasets[0])
        check_dataset("Trainer: val_dataset", datasets[1])
        if self.strategy.runs_algorithm:
            algorithm.check_datasets(*datasets)
        if not logging.getLogger("agl").handlers and not logging.getLogger().handlers:
            setup_logging()
        if self.llm_proxy is None and algorithm.needs_gateway:
            self.llm_proxy = _gateway(None)
        agent.set_trainer(self)
        learn_keys(self.initial_resources or {})
        context = RunContext(
            store=self.store,
            make_adapter=adapter_maker(self.adapter, algorithm, agent.trained_agents),
            gateway=self.llm_proxy,
            resources=self.initial_resources,
            hooks=self._hook_caller,
            trainer=self,
            goes_on=self.run_request.resume,
            is_forced=self.run_request.force,
        )
        agent.grade_method()  # refuses what is no grader
        if not self.strategy.replaces_runners:
            grader_of(agent)  # its process is forked before there are threads
        self.strategy.prepare()
        self.strategy.ask_to_stop = GracefulShutdown(algorithm.ask_to_stop)
        if not self.strategy.runs_algorithm:
            algorithm.set_context(context)
            self._execute(agent, algorithm, datasets, Recording())  # it runs elsewhere
            return self.result
        given = {"train": datasets[0], "val": datasets[1]}
        tasks = {name: tasks for name, tasks in given.items() if tasks is not None}
        what = self.store, agent, algorithm, tasks, self._hook_caller
        run = Recording()
        try:
            with self._recorder.recording(self.run_request, *what) as run:
                algorithm.set_context(replace(context, **run.about))
                asyncio.run(self._make_ready(agent, algorithm, run))
                self._execute(agent, algorithm, datasets, run)
        finally:
            self.result = run.result
            if self.shows_result and self.result.summary and logger.isEnabledFor(logging.INFO):
                tell(self.result.summary)
        return self.result

    def _execute(
        self, agent: LitAgent[Any], algorithm: Algorithm, datasets: Datasets, run: Recording
    ) -> None:
        learner = partial(self._run_algorithm, agent, algorithm, datasets, run)
        runner = partial(_run_runner, self._runner, self._hook_caller, agent)
        self.strategy.execute(learner, runner, self.store)
        if run.stopped is not None:
            raise run.stopped

    async def _make_ready(self, agent: LitAgent[Any], algorithm: Algorithm, run: Recording) -> None:
        latest = await self.store.get_latest_resources()
        there = {**(latest.resources if latest else {}), **(self.initial_resources or {})}
        agent.check_resources(there, algorithm.publishes)
        await algorithm.clear_leftovers(self.store)
        await run.cancel_leftovers(self.store)
        if self.strategy.serves(self.store):
            self.strategy.extra_routes = await routes_of(self._hook_caller, self.store)

    async def _run_algorithm(
        self,
        agent: LitAgent[Any],
        algorithm: Algorithm,
        datasets: Datasets,
        run: Recording,
        store: LightningStore,
        event: ExecutionEvent,
    ) -> None:
        store = run.store_of_algorithm(store)
        algorithm.set_store(store)
        gateway, error = self.llm_proxy, None
        about = {"agent": agent, "algorithm": algorithm, "store": store}
        # One that its user started goes on running for its user.
        own = gateway is not None and not gateway.is_running()
        try:
            await self._hook_caller.call("on_run_start", **about)
            if gateway is not None:
                gateway.set_store(store)
            if self.initial_resources is not None:
                # Not the method: a subclass may have one of this name for itself.
                await Algorithm.publish_resources(algorithm, self.initial_resources)
            if gateway is not None and own:
                await gateway.start()
            if algorithm.is_async():
                await algorithm.run(*datasets)  # pyright: ignore[reportGeneralTypeIssues]
            else:
                await call_in_daemon_thread(lambda: algorithm.run(*datasets))
        except StoppedError as stopped:
            run.note_stopped(stopped)
        except BaseException as raised:
            is_error = isinstance(raised, Exception)
            if is_error and (refusal := run.replaced()) is not None:
                run.note_replaced(refusal)
            elif is_error and gateway is not None and gateway.spent_budget() is not None:
                # Nothing more can be learned, and what was learned is there.
                logger.warning("the algorithm could not go on: %r", raised, exc_info=raised)
            else:
                error = raised
                raise
        finally:
            try:
                if gateway is not None and (spent := gateway.spent_budget()) is not None:
                    run.note_spent(spent)
                if gateway is not None and own and gateway.is_running():
                    await gateway.stop()
            finally:
                try:
                    await self._hook_caller.call("on_run_end", error=error, **about)
                except BaseException:
                    if error is None:
                        raise
                    logger.exception("on_run_end failed, after the run had")


async def _run_runner(
    plan: ComponentPlan[Runner[Any]],
    hooks: HookCaller,
    agent: LitAgent[Any],
    store: LightningStore,
    worker_id: int,
    event: ExecutionEvent,
) -> None:
    # Runners of one process must not share state; where an instance was given, all are copies.
    own = copy.copy(plan.build())
    with own.run_context(agent=agent, store=store, worker_id=worker_id, hooks=hooks) as runner:
        await runner.iter(event=event)


class _RunsElsewhere(FastAlgorithm):
    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        raise ConfigError("this process has runners alone; its algorithm runs elsewhere")


def _gateway(spec: Spec[Gateway]) -> Gateway:
    return plan_part("gateway", spec, where="llm_proxy").build()
