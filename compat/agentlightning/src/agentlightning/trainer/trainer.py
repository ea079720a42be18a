"""The trainer, with 0.3's parameters and defaults."""

import copy
import logging
from collections.abc import Mapping
from typing import Any, cast

from agentlightning._errors import SlowAlgorithmError
from agentlightning._v01.tasks import TaskAgent
from agentlightning.trainer.legacy import TrainerLegacy
from agentlightning.trainer.registry import ExecutionStrategyRegistry as ExecutionStrategyRegistry
from agl import (
    Algorithm,
    FastAlgorithm,
    LightningStore,
    LitAgent,
    NamedResources,
    Runner,
    Trainer as _Trainer,
)
from agl.algorithm.adapter import TraceAdapter, TraceToTripletBase
from agl.algorithm.run_result import RunResult
from agl.plugins.parts import plan_part
from agl.trainer import Datasets
from agl.types import Dataset
from agl.utils.checks import one_of

logger = logging.getLogger("agl.compat")


class Trainer(TrainerLegacy, _Trainer):
    """agl's, with 0.3's parameters, and two of its defaults.

    The default tracer is AgentOps, so that model calls are recorded which do not go through the
    proxy; the default adapter ``TracerTraceToTriplet``, unless the algorithm asks for another.

    Args:
        dev: With a server of 0.1 only; call ``dev()``.
        n_runners: How many runners there are.
        max_rollouts: Each runner ends after so many.
        initial_resources: Published before the algorithm starts.
        tracer: Collects the spans.
        adapter: Turns spans into what the algorithm learns from.
        store: Where all meet.
        runner: Runs the agent.
        strategy: Where algorithm and runners run.
        port: Of the store server.
        algorithm: What learns.
        llm_proxy: In front of the model servers.
        n_workers: Another name of ``n_runners``.
        max_tasks: Another name of ``max_rollouts``.
        daemon: It has no effect: no process outlives ``fit``.
        triplet_exporter: Another name of ``adapter``.
        hooks: Objects with methods named as hooks.
        **agls: Parameters that only ``agl.Trainer`` has: ``run``, ``run_dir``, ...

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        *,
        dev: bool = False,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        initial_resources: NamedResources | None = None,
        tracer: Any = None,
        adapter: Any = None,
        store: Any = None,
        runner: Any = None,
        strategy: Any = None,
        port: int | None = None,
        algorithm: Any = None,
        llm_proxy: Any = None,
        n_workers: int | None = None,
        max_tasks: int | None = None,
        daemon: bool = True,
        triplet_exporter: Any = None,
        hooks: Any = None,
        **agls: Any,
    ) -> None:
        from agentlightning.adapter.triplet import TracerTraceToTriplet
        from agentlightning.llm_proxy import LLMProxy

        if isinstance(llm_proxy, Mapping) and "type" not in llm_proxy:
            llm_proxy = {**llm_proxy, "type": LLMProxy}
        of_the_server = {
            "algorithm": algorithm,
            "adapter": adapter,
            "triplet_exporter": triplet_exporter,
            "store": store,
            "runner": runner,
            "strategy": strategy,
            "port": port,
            "llm_proxy": llm_proxy,
            "initial_resources": initial_resources,
            **agls,
        }
        self._of_the_server = [name for name, given in of_the_server.items() if given is not None]
        adapter = one_of("Trainer", adapter=adapter, triplet_exporter=triplet_exporter)
        if isinstance(adapter, Mapping) and "type" not in adapter:
            adapter = {**adapter, "type": TracerTraceToTriplet}
        if tracer is None:
            from agentlightning.tracer.agentops import AgentOpsTracer

            tracer = AgentOpsTracer
        super().__init__(
            algorithm=algorithm,
            n_runners=one_of("Trainer", n_runners=n_runners, n_workers=n_workers),
            max_rollouts=one_of("Trainer", max_rollouts=max_rollouts, max_tasks=max_tasks),
            initial_resources=initial_resources,
            tracer=tracer,
            adapter=adapter,
            store=store,
            runner=runner,
            strategy=_by_its_name(strategy),
            port=port,
            llm_proxy=llm_proxy,
            hooks=hooks,
            **agls,
        )
        asked_for = getattr(self.algorithm, "default_adapter", "triplet")
        self._adapter_is_ours = self.adapter is None and asked_for == "triplet"
        if self._adapter_is_ours:
            self.adapter = TracerTraceToTriplet()
        elif asked_for == "rows" and isinstance(self.adapter, TraceToTripletBase):
            self.adapter = _as_rows(self.adapter, cast(Algorithm, self.algorithm))
        if isinstance(self.llm_proxy, LLMProxy):
            self.llm_proxy.close_to_others()
        self._dev = dev
        self.daemon = daemon
        self.port = port

    def _run(self, agent: LitAgent[Any], algorithm: Algorithm, datasets: Datasets) -> RunResult:
        if self._adapter_is_ours:
            from agentlightning.adapter.triplet import TracerTraceToTriplet

            self.adapter = TracerTraceToTriplet(agent_match=getattr(agent, "trained_agents", None))
        own = agent.agent if isinstance(agent, TaskAgent) else agent
        for name in ("on_rollout_start", "on_rollout_end"):
            if hasattr(own, name) and own not in self.hooks:
                logger.warning(
                    "%s.%s is not called, as it was not in 0.3: write it in a class of its own, "
                    "class Watch(agl.Hook), and give Trainer(hooks=[Watch()])",
                    type(own).__name__,
                    name,
                )
        return super()._run(agent, algorithm, datasets)

    @property
    def n_workers(self) -> int:
        """Another name of ``n_runners``."""
        return self.n_runners

    @property
    def max_tasks(self) -> int | None:
        """Another name of ``max_rollouts``."""
        return self.max_rollouts

    @property
    def triplet_exporter(self) -> Any:
        """Another name of ``adapter``."""
        return self.adapter

    @property
    def runner(self) -> Runner[Any]:
        """A runner as each runner of ``fit`` will be; each of them is one of its own."""
        return copy.copy(self._runner.build())

    def dev(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        dev_dataset: Dataset[Any] | None = None,
        task: Any = None,
        resources: NamedResources | None = None,
    ) -> Any:
        """Dry-run the loop with a fast algorithm; see ``TrainerLegacy.dev``."""
        if task is None and not isinstance(self.algorithm, FastAlgorithm | None):
            raise SlowAlgorithmError(
                f"Trainer.dev runs fast algorithms only, and {type(self.algorithm).__name__} is "
                "none. Leave the algorithm out to run Baseline, or call fit()"
            )
        return super().dev(
            agent,
            train_dataset,
            val_dataset=val_dataset,
            dev_dataset=dev_dataset,
            task=task,
            resources=resources,
        )


def _as_rows(adapter: TraceToTripletBase, algorithm: Algorithm) -> TraceAdapter[Any]:
    """The adapter that an algorithm asks for, which trains on rows, with the agents of this one."""
    match = getattr(adapter, "agent_match", None)
    options = {} if match is None else {"agent_match": getattr(match, "pattern", match)}
    made = plan_part("adapter", options, default=algorithm.default_adapter).build()
    logger.info(
        "%s trains on rows of tokens, which %s makes in the place of %s",
        *(type(each).__name__ for each in (algorithm, made, adapter)),
    )
    return made


def _by_its_name(strategy: Any) -> Any:
    """The specification of a strategy, with the path in the place of a short name."""
    if strategy is None:
        return ExecutionStrategyRegistry["cs"]
    if isinstance(strategy, Mapping):
        return {**strategy, "type": _by_its_name(strategy.get("type"))}
    strategy = strategy or "cs"
    return (
        ExecutionStrategyRegistry.get(strategy, strategy) if isinstance(strategy, str) else strategy
    )


__all__ = ["ExecutionStrategyRegistry", "LightningStore", "Trainer"]
