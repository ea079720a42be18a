"""0.1's runner: takes tasks from a server, one after the other."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

from agentlightning._v01.tasks import TaskAgent, queue_task, report_on, resources_of
from agentlightning.client import AgentLightningClient
from agentlightning.litagent.litagent import is_v0_1_rollout_api as is_v0_1_rollout_api
from agentlightning.types.core import RolloutLegacy, Task
from agl import InMemoryLightningStore, LitAgent, LitAgentRunner, ResourcesUpdate, Tracer


@dataclass(eq=False)
class LegacyAgentRunner:
    """Runs an agent on the tasks of a server of 0.1, in this process.

    Args:
        agent: The agent.
        client: Of the server.
        tracer: Collects the spans.
        triplet_exporter: Makes the triplets that are reported.
        worker_id: Its number in the log.
        max_tasks: ``iter`` ends after so many; None for never.
    """

    agent: LitAgent[Any]
    client: AgentLightningClient
    tracer: Tracer
    triplet_exporter: Any
    worker_id: int | None = None
    max_tasks: int | None = None

    def run(self) -> bool:
        """Do one task; whether there was one."""
        return asyncio.run(self.run_async())

    async def run_async(self) -> bool:
        task = await self.client.poll_next_task_async()
        if task is None:
            return False
        update = await resources_of(task, self.client)
        await self.client.post_rollout_async(await self._do(task, update))
        return True

    def iter(self) -> int:
        """Do tasks until ``max_tasks`` are done; how many were."""
        return asyncio.run(self.iter_async())

    async def iter_async(self) -> int:
        for done in itertools.count() if self.max_tasks is None else range(self.max_tasks):
            if not await self.run_async():
                return done
        return self.max_tasks or 0

    async def _do(self, task: Task, update: ResourcesUpdate | None) -> RolloutLegacy:
        store = InMemoryLightningStore()
        runner: LitAgentRunner[Any] = LitAgentRunner(self.tracer, max_rollouts=1)
        resources_id = None
        if update is not None:
            resources_id = (await store.add_resources(update.resources)).resources_id
        queued = await queue_task(store, task, resources_id)
        agent = TaskAgent(self.agent)
        with runner.run_context(agent=agent, store=store, worker_id=self.worker_id):
            await runner.iter()
        rollout = await store.get_rollout_by_id(queued.rollout_id)
        assert rollout is not None
        return await report_on(task, rollout, store, self.triplet_exporter.adapt)
