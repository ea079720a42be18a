"""Tasks of a server of 0.1, done by the runners of a trainer."""

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

from agentlightning._v01.reports import ToTriplets, emit_report, report_of
from agentlightning.litagent.litagent import adapted
from agentlightning.types.core import RolloutLegacy, Task
from agl import Algorithm, LightningStore, LitAgent, ResourcesUpdate
from agl.algorithm.adapter import Triplet
from agl.types import AttemptedRollout, Dataset, Rollout, RolloutMode

if TYPE_CHECKING:
    from agentlightning.client import AgentLightningClient

logger = logging.getLogger(__name__)

TASK = "agentlightning.v01.task"
"""Key of a rollout's metadata that has the task as the server sent it."""


class TaskAgent(LitAgent[Any]):
    """An agent that may return what agents of 0.1 did, and sees the rollout ids of their server."""

    def __init__(self, agent: LitAgent[Any]) -> None:
        super().__init__(trained_agents=agent.trained_agents)
        self.agent = agent

    def is_async(self) -> bool:
        return self.agent.is_async()

    def grade_method(self) -> Any:
        return self.agent.grade_method()

    def set_trainer(self, trainer: Any) -> None:
        self.agent.set_trainer(trainer)

    def set_runner(self, runner: Any) -> None:
        self.agent.set_runner(runner)

    def rollout_method(self, mode: RolloutMode | None) -> Any:
        return adapted(self.agent.rollout_method(mode), self.arguments, _recorded)

    def arguments(self, task: Any, resources: Any, rollout: Rollout) -> tuple[Any, ...]:
        return task, resources, _of_server(rollout)


def _of_server(rollout: Rollout) -> Rollout:
    """The rollout under the id that it has at its server."""
    task = (rollout.metadata or {}).get(TASK)
    if task is None:
        return rollout
    changes: dict[str, Any] = {"rollout_id": task["rollout_id"], "metadata": task["metadata"]}
    if isinstance(rollout, AttemptedRollout):
        changes["attempt"] = rollout.attempt.changed(rollout_id=task["rollout_id"])
    return rollout.changed(**changes)


def _recorded(result: Any, rollout: Rollout) -> Any:
    """A result that a runner takes; what it has no place for is recorded in the attempt."""
    report = result
    if isinstance(result, list) and result:
        if all(isinstance(each, Triplet) for each in result):
            rewards = [triplet.reward for triplet in result if triplet.reward is not None]
            reward = rewards[-1] if rewards else None
            report = RolloutLegacy(
                rollout_id=rollout.rollout_id, triplets=result, final_reward=reward
            )
        elif all(isinstance(each, dict) for each in result):
            report = RolloutLegacy(rollout_id=rollout.rollout_id, trace=result)
    if isinstance(report, RolloutLegacy):
        emit_report(report)
        return report.final_reward
    return result


async def queue_task(store: LightningStore, task: Task, resources_id: str | None) -> Rollout:
    """Queue a rollout that does a task of a server."""
    return await store.enqueue_rollout(
        task.input,
        mode=task.mode,
        resources_id=resources_id,
        metadata={TASK: task.model_dump(mode="json")},
    )


async def report_on(
    task: Task, rollout: Rollout, store: LightningStore, to_triplets: ToTriplets
) -> RolloutLegacy:
    """What is to be reported of a task whose rollout has ended."""
    spans = await store.query_spans(rollout.rollout_id, "latest")
    report = report_of(rollout, spans, to_triplets)
    report.rollout_id = task.rollout_id
    if rollout.status != "succeeded":
        report.task = task
    return report


async def resources_of(task: Task, client: "AgentLightningClient") -> ResourcesUpdate | None:
    """The resources that a server has for a task."""
    if task.resources_id is None:
        return await client.get_latest_resources_async()
    return await client.get_resources_by_id_async(task.resources_id)


class ServerTasks(Algorithm):
    """Queues the tasks of a server of 0.1, and reports to it what came of each.

    ``at_once`` of them, as many as there are runners, and ``most`` in all; None is no limit.
    """

    def __init__(
        self, client: "AgentLightningClient", *, at_once: int = 1, most: int | None = None
    ) -> None:
        self.client = client
        self.at_once = at_once
        self.most = most
        self._resources: dict[str, str] = {}

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Until ``most`` tasks are done, else until the run is ended."""
        slots = asyncio.Semaphore(self.at_once)
        async with asyncio.TaskGroup() as group:
            for _ in itertools.count() if self.most is None else range(self.most):
                await slots.acquire()
                task = await self.client.poll_next_task_async()
                if task is None:
                    break
                group.create_task(self._do(task)).add_done_callback(lambda _: slots.release())

    async def _do(self, task: Task) -> None:
        store = self.get_store()
        queued = await queue_task(store, task, await self._publish(task))
        await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
        rollout = await store.get_rollout_by_id(queued.rollout_id)
        if rollout is None:
            logger.warning(
                "Task %s: its rollout %s was deleted", task.rollout_id, queued.rollout_id
            )
            return
        report = await report_on(task, rollout, store, self.get_adapter().adapt)
        logger.info("Task %s: reward %s", task.rollout_id, report.final_reward)
        await self.client.post_rollout_async(report)

    async def _publish(self, task: Task) -> str | None:
        """Make the task's resources the store's, under the id that they have at the server."""
        update = await resources_of(task, self.client)
        if update is None:
            logger.warning("task %s: its server has no resources for it", task.rollout_id)
            return None
        known = f"{update.resources_id}/{update.version}"
        if known not in self._resources:
            await self.get_store().update_resources(update.resources_id, update.resources)
            self._resources[known] = update.resources_id
        return update.resources_id
