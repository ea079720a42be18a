"""What a trainer does with a server of 0.1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentlightning._names import refusing
from agl import LitAgent, NamedResources
from agl.errors import ConfigError
from agl.types import Dataset
from agl_http.tokens import without_token

if TYPE_CHECKING:
    from agentlightning._v01.records import LitRollout
    from agentlightning.client import AgentLightningClient


@refusing(
    **dict.fromkeys(
        ("init", "init_worker", "kill_orphaned_processes", "run", "teardown", "teardown_worker"),
        "its processes are those of a strategy, which fit() starts and ends",
    ),
    client="make it yourself: AgentLightningClient(address)",
)
class TrainerLegacy:
    """The part of a trainer that runs an agent on the tasks of a server of 0.1.

    A class that inherits from it and from ``agl.Trainer`` has both.
    """

    algorithm: Any
    hooks: Any
    max_rollouts: int | None
    n_runners: int
    tracer: Any

    _dev: bool
    _of_the_server: Sequence[str]
    """Options that were given and are for the trainer of a server alone."""

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
        return super().fit(agent, train_dataset, val_dataset=val_dataset)  # pyright: ignore[reportAttributeAccessIssue]

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
        return super().dev(  # pyright: ignore[reportAttributeAccessIssue]
            agent, train_dataset, val_dataset=val_dataset, dev_dataset=dev_dataset
        )

    async def _dev_task(
        self, agent: LitAgent[Any], task: Any, resources: NamedResources
    ) -> "LitRollout":
        from agentlightning._v01.records import LitRollout
        from agentlightning._v01.tasks import TaskAgent
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
        from agentlightning._v01.tasks import ServerTasks, TaskAgent
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
            super().fit(TaskAgent(agent))  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            self.algorithm = None
