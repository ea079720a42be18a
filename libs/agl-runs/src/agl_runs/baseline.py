"""The algorithm that learns nothing: runs every task once and shows what came of it."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import agl
from agl.algorithm.base import FastAlgorithm
from agl.errors import AdapterError, AglError, AlgorithmError, RunnerCrashError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Dataset, Rollout, RolloutMode, Span
from agl.types.records import public_failure, without_private
from agl.utils.checks import check_numbers
from agl.utils.text import shorten
from agl_runs.failures import infrastructure_failure
from agl_runs.mixed_calls import MixingCheck, ran
from agl_runs.options import Named, need_tasks

logger = logging.getLogger("agl.baseline")
_of_attempts = logging.getLogger("agl.runner.attempt")

LONGEST_TASK = 25
"""Characters of a task in the line of its rollout."""


class Baseline(Named, FastAlgorithm):
    """Run the tasks as they are, and log a line of each: rollout, status, reward, seconds, task.

    At level debug (``agl dev -v``) the log has spans and adapted data, too. The train tasks run in
    mode ``train``, the validation tasks in mode ``val``. At the end a line says how many rollouts
    succeeded and their mean reward. A run that goes on counts what has succeeded in its earlier
    starts, and runs the other tasks; one that is forced to runs all. A rollout that succeeded
    although servers or the network failed a model call of it has no reward, and runs again when the
    run goes on. A run fails if that happened to all rollouts that it ran.

    Args:
        n_epochs: How often each task runs.
        max_queue_length: How many rollouts may wait in the queue at once.
    """

    publishes = ()
    growing_options = frozenset({"n_epochs"})

    def __init_subclass__(cls, **options: Any) -> None:  # its ``run`` may put some in the store
        cls.publishes = cls.__dict__.get("publishes")
        super().__init_subclass__(**options)

    def __init__(self, *, n_epochs: int = 1, max_queue_length: int = 4) -> None:
        check_numbers("Baseline", whole=True, least=0, n_epochs=n_epochs)
        check_numbers("Baseline", whole=True, least=1, max_queue_length=max_queue_length)
        self.n_epochs = n_epochs
        self.max_queue_length = max_queue_length
        self.rewards: dict[str, float | None] = {}
        """Rollout id -> final reward, None where there is none; filled by ``run``."""

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse to begin without tasks."""
        need_tasks("Baseline", train_dataset, val_dataset)

    async def clear_leftovers(self, store: LightningStore) -> None:
        """Have runners that start from now on not log what ``run`` logs of each attempt."""
        if not _of_attempts.isEnabledFor(logging.DEBUG):
            _of_attempts.addFilter(_drop)

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Run all tasks ``n_epochs`` times."""
        self.rewards = {}
        self._num_succeeded = self._num_shown = 0
        self._outages: list[str | None] = []
        self._no_runner: RunnerCrashError | None = None
        datasets = [each for each in (train_dataset, val_dataset) if each is not None]
        self._num_tasks = self.n_epochs * sum(map(len, datasets))
        self._mixing = MixingCheck()
        succeeded = await self._find_succeeded()
        try:
            for epoch in range(1, self.n_epochs + 1):
                level = logging.INFO if self.n_epochs > 1 else logging.DEBUG
                logger.log(level, "Epoch %d of %d.", epoch, self.n_epochs)
                slots = asyncio.Semaphore(self.max_queue_length)
                async with asyncio.TaskGroup() as group:
                    for mode, index, sample in _tasks(train_dataset, val_dataset):
                        if (known := succeeded.get((mode, epoch, index))) is not None:
                            await self._show(known)
                            continue
                        await slots.acquire()
                        if self.is_budget_spent() or self._no_runner is not None:
                            break
                        place = {"epoch": epoch, "index": index}
                        group.create_task(self._run_one(sample, mode, place, slots))
        finally:
            _of_attempts.removeFilter(_drop)
            rewards = [reward for reward in self.rewards.values() if reward is not None]
            mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "none"
            end = "Finished" if len(self.rewards) >= self._num_tasks else "Stopped after"
            numbers = (end, len(self.rewards), self._num_succeeded, mean, len(rewards))
            logger.info("%s %d rollouts: %d succeeded, mean reward %s over %d.", *numbers)
        if self._no_runner is not None:
            raise self._no_runner
        if self._outages and all(self._outages) and not self.is_budget_spent():
            raise AlgorithmError(
                f"servers or the network failed model calls of all {len(self._outages)} rollouts, "
                f"the first with: {self._outages[0]}. See that gateway and model answer"
            )

    async def _find_succeeded(self) -> dict[tuple[RolloutMode | None, int, int], Rollout]:
        """What has its reward from earlier starts of the run, by mode, epoch and number of task."""
        run_id, generation = self.get_run() or ("", 1)
        if generation == 1 or self._run_context.is_forced:
            return {}
        found: dict[tuple[RolloutMode | None, int, int], Rollout] = {}
        for rollout in await self.get_store().query_rollouts(status_in=["succeeded"], run=run_id):
            about = rollout.metadata or {}
            if about.get("run") != run_id or not {"epoch", "index"} <= about.keys():
                continue
            spans = await self.get_store().query_spans(rollout.rollout_id, "latest")
            if infrastructure_failure(spans) is None:
                found[rollout.mode, about["epoch"], about["index"]] = rollout
        logger.info("%d rollouts have succeeded in earlier starts of the run.", len(found))
        return found

    async def _run_one(
        self, sample: Any, mode: RolloutMode, place: dict[str, Any], slots: asyncio.Semaphore
    ) -> None:
        store = self.get_store()
        try:
            rollout = await store.enqueue_rollout(sample, mode=mode, metadata=place)
            task = without_private(sample)
            logger.debug("%s Enqueued in %s mode: %s", rollout.rollout_id, mode, task)
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            if ended is None:
                self._num_shown += 1
                said = self._num_shown, self._num_tasks, rollout.rollout_id
                return logger.warning("%d/%d %s was deleted, and counts for nothing", *said)
            self._outages.append(await self._show(ended))
        except RunnerCrashError as error:  # what has ended is still shown
            self._no_runner = error
        finally:
            slots.release()

    async def _show(self, ended: Rollout) -> str | None:
        """Log a rollout, and say how servers or the network failed it."""
        who = ended.rollout_id
        attempt = ended.attempt if isinstance(ended, AttemptedRollout) else None
        error = None if attempt is None else public_failure(attempt.error)
        spans = await self.get_store().query_spans(ended.rollout_id, "latest")
        for span in spans:
            logger.debug("%s %s", who, self._describe(span))
        reward = agl.find_final_reward(spans) if ended.status == "succeeded" else None
        failure = infrastructure_failure(spans)
        if ended.status != "succeeded":
            failure = error.message if error and error.boundary == "model" else failure
        elif failure is not None:
            logger.warning("%s Reward %s left out: a model call failed: %s", who, reward, failure)
            reward = None
        self.rewards[ended.rollout_id] = reward
        went = ended.status
        if went == "succeeded":
            went += ", no reward" if reward is None else f", reward {reward:.4g}"
            self._num_succeeded += 1
            if attempt is not None:
                self._mixing.look([ran(ended.rollout_id, attempt, spans)])
            if spans:
                self._adapt(who, spans)
        self._num_shown += 1
        took = (ended.end_time or ended.start_time) - ended.start_time
        why = "" if error is None else f"; {error.boundary}: {error.type}: {error.message}"
        task, why = (" ".join(text.split()) for text in (str(without_private(ended.input)), why))
        said = (self._num_shown, self._num_tasks, who, went, took, shorten(task, LONGEST_TASK), why)
        level = logging.INFO if error is None else logging.WARNING
        logger.log(level, "%d/%d %s %s, %.1f s: %s%s", *said)
        return failure

    def _adapt(self, who: str, spans: Sequence[Span]) -> None:
        try:
            logger.debug("%s Adapted data: %s", who, self.get_adapter().adapt(spans))
        except AglError as error:
            level = logging.WARNING if isinstance(error, AdapterError) else logging.DEBUG
            logger.log(level, "%s Not adapted: %s", who, error)
        except Exception as error:
            # What an agent wrote into one span must not keep the other rollouts from running.
            logger.warning("%s The adapter cannot read these spans", who, exc_info=error)

    @staticmethod
    def _describe(span: Span) -> str:
        line = f"#{span.sequence_id} {span.name} ({span.status.status_code})"
        if span.start_time is not None and span.end_time is not None:
            line += f" {span.end_time - span.start_time:.2f} seconds"
        return f"{line} {sorted(span.attributes)}"


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _tasks(
    train: Dataset[Any] | None, val: Dataset[Any] | None
) -> Iterator[tuple[RolloutMode, int, Any]]:
    modes: dict[RolloutMode, Dataset[Any] | None] = {"train": train, "val": val}
    for mode, dataset in modes.items():
        if dataset is not None:
            for index in range(len(dataset)):
                yield mode, index, dataset[index]
