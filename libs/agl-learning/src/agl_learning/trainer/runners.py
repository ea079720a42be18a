"""What runs the tasks of a run: the newest version serves, runners roll out, the store keeps."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from agl.errors import AlgorithmError, StoppedError
from agl.types import RolloutMode
from agl_learning.collect.results import Collected
from agl_learning.collect.task_order import digest
from agl_learning.run.records import Record
from agl_learning.trainer.base import Training
from agl_learning.trainer.session import Session
from agl_models.versions import Served, ServedModel, Version, model_served

logger = logging.getLogger("agl.learning")

OTHER_TASKS = "had other tasks"


class Serving:
    """Serves a trainer's newest version from when it is asked for until ``end``."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._lock = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._resources: dict[str, str] | None = None
        self._served = Served({})

    async def resources(self) -> dict[str, str]:
        """Have the newest version answer; ids of the resources per mode."""
        async with self._lock:  # a source may ask several times at once
            if self._resources is None:
                published = self._published(self._training.version)
                self._resources = await self._stack.enter_async_context(published)
            return self._resources

    async def end(self) -> None:
        """End it, where one is served."""
        self._resources = None
        await self._stack.aclose()

    async def why_silent(self) -> str | None:
        """Why what was served last answers no more; None as long as it may answer."""
        return await self._served.why_silent()

    @contextlib.asynccontextmanager
    async def _published(self, version: Version) -> AsyncGenerator[dict[str, str]]:
        training = self._training
        gateway, store = training.session.gateway, training.get_store()
        async with training.serve(version) as self._served, contextlib.AsyncExitStack() as stack:
            models = training.models_served(self._served)
            for one in models:
                await stack.enter_async_context(model_served(gateway, one.entry(), store))
            # What trains comes last: those are the latest resources of the store.
            yield {mode: await self._publish(version, mode, models) for mode in ("val", "train")}

    async def _publish(self, version: Version, mode: str, models: list[ServedModel]) -> str:
        training = self._training
        resources = {**(training.get_initial_resources() or {})}
        for one in models:
            resources[one.resource] = training.session.gateway.as_resource(
                model=one.name, sampling_parameters=one.sampling[mode]
            )
        resources_id = f"{training.name}-{training.session.run_id}-{version.number}-{mode}"
        return (await training.publish_resources(resources, resources_id)).resources_id


class RunnersOfRun:
    """What a source asks for rollouts, and what an evaluation does."""

    def __init__(self, training: Training, session: Session) -> None:
        self._training, self._session = training, session
        self.serving = Serving(training)

    def key(self, after: int) -> str:
        """Under which the rollouts of the step after so many stand by now."""
        return self._session.records.key("train", after)

    def _copies(self, mode: RolloutMode) -> int:
        training = self._training
        return training.num_copies if mode == "train" else training.evaluation.copies

    async def ask(
        self,
        after: int,
        tasks: Sequence[Any],
        first_group: int = 0,
        mode: RolloutMode = "train",
        *,
        at_once: bool = False,
    ) -> Collected:
        """Run tasks with the newest version, as far as no earlier start of the run has.

        They are for what comes ``after`` so many steps; ``first_group`` is that of the first task.
        With ``at_once`` it takes what there is; what has not ended is cancelled.
        """
        session, resources = self._session, await self.serving.resources()
        about = {
            "algorithm": session.algorithm,
            **session.generation.metadata,
            "step": after + (mode == "train"),
            "version": self._training.version.number,
            "round": session.records.round(mode, after),
        }
        given = (tasks, self._copies(mode), mode, resources[mode], about)
        key = session.records.key(mode, after)
        return await session.collector.collect(*given, key, first_group, at_once)

    async def collect(
        self,
        after: int,
        gather: Callable[[], Awaitable[Collected]],
        tasks: Callable[[int], Sequence[Any]],
        mode: RolloutMode = "train",
    ) -> Collected:
        """All that belongs to a place: what its record has, or what ``gather`` brings by ``ask``.

        What an earlier start has collected is given up if the store does not have it any more, or
        if it is of other tasks than the first so many of ``tasks``.

        Raises:
            StoppedError: The run was asked to stop, or its budget was spent, before all were done.
            AlgorithmError: The version answers no more; or not one was done, as servers or the
                network failed their model calls.
        """
        records, collector = self._session.records, self._session.collector
        record = records.find(mode, after)
        if record is not None and record.copies == self._copies(mode):
            if missing := await collector.missing(record.rollout_ids):
                few, number = ", ".join(missing[:3]), len(record.rollout_ids)
                gone = f"are not all in the store: {len(missing)} of {number} lack ({few})"
            else:
                collected = await collector.read(record.rollouts, record.lost)
                collected.seconds = record.seconds
                gone = record.what_is_gone(collected)
                if not gone and _are_of(collected, tasks):
                    return collected
            await self._give_up(mode, after, gone or OTHER_TASKS)
        number = records.round(mode, after)
        collected = await gather()
        if not _are_of(collected, tasks):
            await self._give_up(mode, after, OTHER_TASKS)
            number = records.round(mode, after)
            collected = await gather()
        what = f"{mode} rollouts after step {after}"
        # Others of the run will fail as these. They get no record, and so run again.
        out = [one.failed if one.unusable else None for one in collected.ended]
        why = [one.why if one and one.kind == "infrastructure" else "" for one in out]
        if self._training.is_budget_spent() and (collected.num_failed or any(why)):
            raise StoppedError("its budget was spent")
        if why and all(why):
            raise AlgorithmError(
                f"infrastructure failed all {len(why)} {what}, the first with: {why[0]}. See that "
                "gateway, model and runners answer, and go on: these run again"
            )
        if (silent := await self.serving.why_silent()) is not None:
            raise AlgorithmError(f"{silent}. Go on with the run: {what} that failed run again")
        await records.put(mode, after, Record.of(collected, number))
        return collected

    async def _give_up(self, mode: RolloutMode, after: int, why: str) -> None:
        """Have what was collected after so many steps, and all that came later, drawn anew."""
        logger.warning(
            "the %s rollouts that were collected after step %d %s. They are given up, and drawn "
            "anew, as is all that came after them",
            "validation" if mode == "val" else "training",
            after,
            why,
        )
        await self._session.records.redraw(mode, after)


def _are_of(collected: Collected, tasks: Callable[[int], Sequence[Any]]) -> bool:
    """Whether rollouts are of these tasks: those under a key may be of an earlier start."""
    groups = {one.group for one in collected.ended}
    digests = dict(enumerate(digest([task]) for task in tasks(len(groups))))
    return groups == digests.keys() and all(
        digest([one.rollout.input]) == digests[one.group] for one in collected.ended
    )
