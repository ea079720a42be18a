"""A trainer's start and end, and the same step once more.

A trainer has a run (``agl_learning.run``), a source of experience (``trainer.source``) and a loop
(``trainer.loop``) which asks it what to learn (``trainer.learning``). It is of one of two kinds:

- ``agl_learning.trainer.online.OnlineTraining``: the weights change in this process, and a
  checkpoint now and then is what outlives it (GRPO)
- ``agl_learning.trainer.version.FineTuning``: every step makes a whole version of the model
  somewhere else, and the checkpoint says where (SFT, DPO, trainers elsewhere)
"""

import asyncio
import logging
import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from agl.errors import ConfigError
from agl.types import Dataset
from agl_learning.run.folder import cancel_dead_starts
from agl_learning.trainer.learning import Learning

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_learning.run.start import Origin
    from agl_learning.trainer.loop import Loop
    from agl_learning.trainer.replay_result import Replay

logger = logging.getLogger("agl.learning")


@dataclass(kw_only=True, eq=False, repr=False)
class Training(Learning):
    """What every trainer shares: serve a model, roll out, learn, save, again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._running: Loop | None = None
        self._origin: Origin | None = None

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse options of evaluations where there is nothing to evaluate on."""
        check_evaluation(self.title, self, val_dataset)

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        # It refuses what run() would refuse, so that nothing is cancelled for a start that fails.
        origin = self._origin = await asyncio.to_thread(self.find_start)
        await cancel_dead_starts(store, origin.folder, origin.home)

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Do all steps that the run has not had yet.

        Raises:
            ConfigError: No tasks, no gateway, or a folder, model or machine that will not do.
            AlgorithmError: Nothing could be trained; the message says why.
            LedgerError: A model call stands in no bin or in several.
            StoppedError: It was asked to stop.
        """
        from agl_learning.collect.task_order import Tasks
        from agl_learning.trainer.loop import Loop
        from agl_learning.trainer.opening import open_run
        from agl_learning.trainer.requests import Requests

        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError(f"{self.title}: there are no training tasks; pass train_dataset")
        self.check_datasets(train_dataset, val_dataset)
        warn_of_intervals(self.title, self, self.num_steps)
        begun = time.perf_counter()
        self._asked_to_stop = asyncio.Event()
        origin, self._origin = self._origin or await asyncio.to_thread(self.find_start), None
        async with open_run(self, origin) as session:
            tasks = Tasks(train_dataset, self.seed, self.task_order)
            given = self._run_context.hooks
            hooks = cast("Sequence[object]", given) if isinstance(given, Sequence) else ()
            asked = Requests(hooks, origin.progress()), self._asked_to_stop
            loop = self._running = Loop(self, session, tasks, val_dataset, *asked)
            try:
                stopped = await loop.run()
                self.summary = {
                    **self.summed_up(),
                    "seconds": time.perf_counter() - begun,
                    "rewards": session.rewards,
                    "val_rewards": session.val_rewards,
                    **session.report.of_run(),
                    **session.totals.summary(),
                    "run_dir": str(session.folder),
                }
                session.report.summary(self.summary)
            finally:
                self._running = None
                await loop.end()
        if stopped is not None:
            raise stopped

    async def end_serving(self) -> None:
        """End it, where a version is served: its memory is needed for training."""
        if self._running is not None:
            await self._running.serving.end()

    def ask_to_stop(self) -> bool:
        """End when the rollouts or the training under way have; what is done is kept."""
        return self._running is not None and self._running.ask_to_stop()

    def ask_to_end(self) -> None:
        """Have no more steps after the one under way: evaluate, save, and end as after the last.

        For hooks, as are the next two; without a run they do nothing.
        """
        if self._running is not None:
            self._running.requests.ends = True

    def ask_to_save(self) -> None:
        """Save a checkpoint after the step under way, or the next one that trains something."""
        if self._running is not None:
            self._running.requests.saves = True

    def ask_to_evaluate(self) -> None:
        """Evaluate on the validation tasks, if there are any, after the step under way."""
        if self._running is not None:
            self._running.requests.evaluates = True

    async def replay(self, step: int) -> "Replay":
        """Load the newest whole checkpoint before a step, and train from there up to it.

        Of each step it reads from the store what the run had collected for it. What the run wrote
        is not touched; a folder of its own, that goes afterwards, takes what is written.
        """
        from agl_learning.trainer.replay import replay

        return await replay(self, step, self.get_run_folder() or self.folder_of_options())


def check_evaluation(owner: str, options: Any, val: Sized | None) -> None:
    """Refuse options of evaluations where there are none.

    Args:
        owner: Whose options they are.
        options: ``LoopOptions``.
        val: The tasks of evaluations.

    Raises:
        ConfigError: It names the first of them that is not its default.
    """
    if val is not None and len(val) > 0:
        return
    for name, value in _set(options, "eval_every", "eval_copies", "eval_temperature"):
        raise ConfigError(
            f"{owner}: {name} is {value}, and there are no validation tasks to evaluate on. Give "
            f"some (val in a file, val_dataset in Python), or leave {name} out"
        )


def warn_of_intervals(owner: str, options: Any, steps: int) -> None:
    """Say what comes of an interval that no step ends: somebody tries a file with fewer steps."""
    for name, value in _set(options, "eval_every", "checkpoint_every"):
        if value > steps:
            logger.warning(
                "%s: %s is %d, and the run has %d steps: it does nothing, beside what is done at "
                "the end in any case",
                *(owner, name, value, steps),
            )


def _set(options: Any, *names: str) -> list[tuple[str, Any]]:
    """Those that are there, and have another value than their default."""
    found = ((one, getattr(options, one.name)) for one in fields(options) if one.name in names)
    return [(one.name, value) for one, value in found if value != one.default]
