"""The trainer, with 0.3's parameters and defaults."""

import copy
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from agentlightning._errors import SlowAlgorithmError
from agentlightning._names import refusing
from agentlightning._v01.tasks import TaskAgent
from agentlightning.trainer.registry import ExecutionStrategyRegistry as ExecutionStrategyRegistry
from agl import Algorithm, FastAlgorithm, LitAgent, NamedResources, Runner, Trainer as _Trainer
from agl.algorithm.adapter import TraceAdapter, TraceToTripletBase
from agl.algorithm.run_result import RunResult
from agl.errors import ConfigError
from agl.plugins.parts import plan_part
from agl.trainer import Datasets
from agl.types import Dataset
from agl.utils.checks import one_of
from agl_http.tokens import without_token

if TYPE_CHECKING:
    from agentlightning.client import AgentLightningClient
    from agentlightning.types.core import LitRollout

logger = logging.getLogger("agl.compat")


@refusing(
    {
        "its processes are those of a strategy, which fit() starts and ends": "init init_worker "
        "kill_orphaned_processes run teardown teardown_worker",
        "make it yourself: AgentLightningClient(address)": "client",
    }
)
class Trainer(_Trainer):
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
        options: dict[str, Any] = {
            "algorithm": algorithm,
            "store": store,
            "runner": runner,
            "port": port,
            "llm_proxy": llm_proxy,
            "initial_resources": initial_resources,
            **agls,
        }
        parts = {"adapter": adapter, "triplet_exporter": triplet_exporter, "strategy": strategy}
        of_the_server = (options | parts).items()
        self._of_the_server = [name for name, given in of_the_server if given is not None]
        adapter = one_of("Trainer", adapter=adapter, triplet_exporter=triplet_exporter)
        if isinstance(adapter, Mapping) and "type" not in adapter:
            adapter = {**adapter, "type": TracerTraceToTriplet}
        if tracer is None:
            from agentlightning.tracer.agentops import AgentOpsTracer

            tracer = AgentOpsTracer
        super().__init__(
            n_runners=one_of("Trainer", n_runners=n_runners, n_workers=n_workers),
            max_rollouts=one_of("Trainer", max_rollouts=max_rollouts, max_tasks=max_tasks),
            tracer=tracer,
            adapter=adapter,
            strategy=_by_its_name(strategy),
            hooks=hooks,
            **options,
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

    def fit(
        self,
        agent: LitAgent[Any],
        train_dataset: "Dataset[Any] | str | AgentLightningClient | None" = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        dev_data: "AgentLightningClient | None" = None,
        dev_backend: "AgentLightningClient | None" = None,
    ) -> Any:
        """Train ``agent``; see ``agl.Trainer.fit``, and ``fit_v0`` for a server of 0.1.

        Args:
            agent: The agent.
            train_dataset: Tasks; or the address of a server of 0.1, or a client of it.
            val_dataset: Tasks to measure with.
            dev_data: With a server only, see ``fit_v0``.
            dev_backend: The same.
        """
        from agentlightning.client import AgentLightningClient

        if isinstance(train_dataset, str | AgentLightningClient):
            self.fit_v0(
                agent,
                train_dataset,
                val_data=val_dataset,
                dev_data=dev_data,
                dev_backend=dev_backend,
            )
            return None
        if self._dev or dev_data is not None or dev_backend is not None:
            raise ConfigError(
                "Trainer.fit: dev=True and dev_data are for servers of 0.1; leave them out, and "
                "call trainer.dev(agent, train_dataset)"
            )
        return super().fit(agent, train_dataset, val_dataset=val_dataset)

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
        """Dry-run the whole loop; see ``agl.Trainer.dev``.

        Args:
            agent: The agent.
            train_dataset: Tasks.
            val_dataset: Tasks to measure with.
            dev_dataset: Another name of ``train_dataset``.
            task: Runs this task alone, in this process and without an algorithm: what is returned
                is to be awaited, and is a ``LitRollout``.
            resources: For ``task``.
        """
        if task is not None:
            return self._dev_task(agent, task, resources or {})
        if not isinstance(self.algorithm, FastAlgorithm | None):
            raise SlowAlgorithmError(
                f"Trainer.dev runs fast algorithms only, and {type(self.algorithm).__name__} is "
                "none. Leave the algorithm out to run Baseline, or call fit()"
            )
        return super().dev(agent, train_dataset, val_dataset=val_dataset, dev_dataset=dev_dataset)

    async def _dev_task(
        self, agent: LitAgent[Any], task: Any, resources: NamedResources
    ) -> "LitRollout":
        from agentlightning.types.core import LitRollout
        from agl import InMemoryLightningStore, LitAgentRunner, OtelTracer, find_final_reward

        store = InMemoryLightningStore()
        runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=TaskAgent(agent), store=store):
            rollout = await runner.step(task, resources=resources, mode="train")
        spans = list(await store.query_spans(rollout.rollout_id))
        return LitRollout(
            rollout_id=rollout.rollout_id,
            final_reward=find_final_reward(spans),
            traces=spans,
            resources=resources,
        )

    def fit_v0(
        self,
        agent: LitAgent[Any],
        train_data: "str | AgentLightningClient",
        *,
        val_data: Any = None,
        dev_data: "str | AgentLightningClient | None" = None,
        dev_backend: "str | AgentLightningClient | None" = None,
    ) -> None:
        """Run the agent on the tasks of a server, until ``max_rollouts`` of each runner are done.

        Args:
            agent: The agent; its methods may be those of 0.1.
            train_data: Address of the server, of 0.1 or a store of agl, or a client of it.
            val_data: None; the server says what is for validation.
            dev_data: Takes the place of ``train_data`` where the trainer has ``dev=True``.
            dev_backend: The same, under its older name.

        Raises:
            ConfigError: The trainer has an algorithm of its own, or another option that is the
                server's, or what is given is no server.
        """
        from agentlightning._v01.of_store import is_store, run_agent
        from agentlightning._v01.tasks import ServerTasks
        from agentlightning.client import AgentLightningClient

        backend = train_data
        if self._dev:
            backend = dev_data if dev_data is not None else dev_backend
            if backend is None:
                raise ConfigError(
                    "Trainer(dev=True).fit: give dev_data, a DevTaskLoader with tasks; or leave "
                    "dev=True out to take tasks from the server"
                )
        if val_data is not None:
            raise ConfigError(
                "Trainer.fit with a server of 0.1: val_data is not used, for the server says which "
                "tasks are for validation: queue_task(..., mode='val')"
            )
        if isinstance(backend, str) and is_store(backend):
            if self._of_the_server:
                raise ConfigError(
                    f"Trainer.fit: at {without_token(backend)[0]} is a store, whose trainer has an "
                    "algorithm, an adapter and all else; this one runs agents for it, and would "
                    f"leave {', '.join(self._of_the_server)} unused. Leave it out here, and give "
                    "it to the trainer that serves the store"
                )
            run_agent(
                agent,
                backend,
                tracer=self.tracer,
                n_runners=self.n_runners,
                max_rollouts=self.max_rollouts,
                hooks=self.hooks,
            )
            return
        client = AgentLightningClient(backend) if isinstance(backend, str) else backend
        if not isinstance(client, AgentLightningClient):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                "Trainer.fit_v0: expected the address of a server of 0.1 or a client of it, got "
                f"{type(backend).__name__}. A dataset goes to Trainer(algorithm=...).fit"
            )
        if self.algorithm is not None:
            raise ConfigError(
                f"Trainer.fit: {client.address} has an algorithm of its own, and this trainer has "
                f"{type(self.algorithm).__name__}, too; leave one of them out"
            )
        most = None if self.max_rollouts is None else self.max_rollouts * self.n_runners
        self.algorithm = ServerTasks(client, at_once=self.n_runners, most=most)
        try:
            super().fit(TaskAgent(agent))
        finally:
            self.algorithm = None


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
