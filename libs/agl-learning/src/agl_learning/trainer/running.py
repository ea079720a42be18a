"""All steps that a run has not had yet."""

import asyncio
import time
from typing import Any

from agl.errors import ConfigError
from agl.types import Dataset
from agl_learning.collect.task_order import Tasks
from agl_learning.trainer.base import Training
from agl_learning.trainer.loop import Loop
from agl_learning.trainer.opening import open_run
from agl_learning.trainer.requests import Requests


async def run(
    training: Training, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
) -> None:
    """Do all steps that the run has not had yet.

    Raises:
        ConfigError: No tasks, no gateway, or a folder, model or machine that will not do.
        AlgorithmError: Nothing could be trained; the message says why.
        LedgerError: A model call stands in no bin or in several.
        StoppedError: It was asked to stop.
    """
    if train_dataset is None or len(train_dataset) == 0:
        raise ConfigError(f"{training.title}: there are no training tasks; pass train_dataset")
    training.check_datasets(train_dataset, val_dataset)
    training.warn_of_intervals()
    begun = time.perf_counter()
    training.asked_to_stop = asyncio.Event()
    origin = training.origin or await asyncio.to_thread(training.find_start)
    training.origin = None
    async with open_run(training, origin) as session:
        tasks = Tasks(train_dataset, training.seed, training.task_order)
        asked = Requests(training.hooks, origin.progress()), training.asked_to_stop
        loop = training.running = Loop(training, session, tasks, val_dataset, *asked)
        try:
            stopped = await loop.run()
            training.summary = {
                **training.summed_up(),
                "seconds": time.perf_counter() - begun,
                "rewards": session.rewards,
                "val_rewards": session.val_rewards,
                **session.report.of_run(),
                **session.totals.summary(),
                "run_dir": str(session.folder),
            }
            session.report.summary(training.summary)
        finally:
            training.running = None
            await loop.end()
    if stopped is not None:
        raise stopped
