"""What every trainer shares: its options, the questions of the loop, a start and its end.

A trainer has a run (``agl_learning.run``), a source of experience (``trainer.source``) and a loop
(``trainer.loop``) which asks it what to learn. It is of one of two kinds:

- ``agl_learning.trainer.online.OnlineTraining``: the weights change in this process, and a
  checkpoint now and then is what outlives it (GRPO)
- ``agl_learning.trainer.version.FineTuning``: every step makes a whole version of the model
  somewhere else, and the checkpoint says where (SFT, DPO, trainers elsewhere)
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError, ConfigError
from agl.types import LLM, Dataset, RolloutConfig
from agl_learning.collect.collector import Collector
from agl_learning.run.folder import cancel_dead_starts, check_identity, shape_of
from agl_learning.run.start import Origin, free_gateway
from agl_learning.trainer.loop_options import LoopOptions, check_evaluation, warn_of_intervals
from agl_models.gateways import sampling_of
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.options import absolute, check_options
from agl_records.training_data import TrainedModel

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore
    from agl_learning.collect.results import Collected
    from agl_learning.run.checkpoint import Progress
    from agl_learning.run.session import Session
    from agl_learning.trainer.loop import Loop
    from agl_learning.trainer.replay_result import Replay
    from agl_learning.trainer.serving import ServedModel
    from agl_learning.trainer.source import Runners, Source, Tasks

logger = logging.getLogger("agl.learning")


@dataclass
class Learned:
    """What a step has learned."""

    metrics: dict[str, Any]
    trained: bool = True
    """Whether anything was."""
    rows: list[str] = field(default_factory=list[str])
    """Digests of the rows, or examples, that were trained, in their order."""
    rollout_ids: list[str] = field(default_factory=list[str])
    """Of which rollout each is, if that is known."""


@dataclass(kw_only=True, eq=False, repr=False)
class Training(Algorithm, LoopOptions):
    """What every trainer shares."""

    default_adapter = "rows"
    needs_gateway = True
    publishes = (LLM,)
    name: ClassVar[str] = "training"
    """Of the algorithm: in the ledger, in rollouts' metadata, in names of folders."""
    makes_versions: ClassVar[bool] = False
    """Whether each step makes a version that outlives the process, and is saved at once."""

    def __post_init__(self) -> None:
        check_options(self.title, self)
        self.run_dir = absolute(self.run_dir)
        if self.credit is not None:
            self.adapter_options = {"credit": self.credit}
        self.rollout_config = RolloutConfig(
            timeout_seconds=self.rollout_timeout_seconds,
            unresponsive_seconds=self.unresponsive_seconds,
            max_attempts=2,
            retry_condition=["unresponsive"],
        )
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._session: Session | None = None
        self._running: Loop | None = None
        self._origin: Origin | None = None
        self._asked_to_stop = asyncio.Event()

    @property
    def title(self) -> str:
        """What messages begin with."""
        return type(self).__name__

    # --- what a kind of training says

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many the run is to have."""

    @property
    @abstractmethod
    def version(self) -> Version:
        """The newest one."""

    @abstractmethod
    def find_start(self) -> Origin:
        """Where the run begins; everything that can be refused before a model is loaded is.

        Raises:
            ConfigError: Checkpoint or folder are not usable, or nothing is left to do.
        """

    @abstractmethod
    async def begin(self, checkpoint: Path | None, progress: "Progress", folder: Path) -> None:
        """Load the model, or find the version, of a checkpoint, or those of the beginning."""

    @abstractmethod
    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """A block in which ``version`` answers requests."""

    @property
    @abstractmethod
    def num_copies(self) -> int:
        """How often each task of a step runs."""

    @abstractmethod
    def find_source(self, runners: "Runners", tasks: "Tasks", taken: int) -> "Source":
        """Where rollouts come from, when so many tasks were taken before."""

    @abstractmethod
    async def learn(self, collected: "Collected", number: int) -> Learned:
        """Do what step ``number`` does with its rollouts; every call of them gets its bin."""

    @abstractmethod
    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes of this kind, by the fields of ``Progress``."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what ``begin`` needs into a folder."""

    @abstractmethod
    def summed_up(self) -> dict[str, Any]:
        """What the summary says of this kind of training."""

    def digest(self) -> str | None:
        """What tells the newest version from others, bit for bit; None where it is not asked."""
        return None

    def idle_metrics(self, seconds: float) -> dict[str, float]:
        """Of the time in which nothing was computed, for rollouts had not ended."""
        return {}

    async def after_step(self, number: int, collected: "Collected", trained: bool) -> None:
        """Look whether the run is to go on.

        Raises:
            AlgorithmError: It is not.
        """

    def saves_after(self, number: int, last: bool) -> bool:
        """Whether a checkpoint comes after a step."""
        return True

    def is_usable(self, checkpoint: Path) -> bool:
        """Whether what a whole checkpoint refers to is there, too."""
        return True

    async def clean_up(self) -> None:
        """Let go of what ``begin`` and the others hold; called at the end, whatever happened."""

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is continued; JSON values."""
        named = ("seed", "deterministic")
        return {"algorithm": self.name, **{name: getattr(self, name) for name in named}}

    def check_identity(self, folder: Path, before: Mapping[str, Any]) -> None:
        """Refuse to continue as another run; see ``agl_learning.run.folder.check_identity``."""
        is_forced = self._run_context.is_forced
        check_identity(self.title, self.identity(), folder, before, is_forced)

    def shape(self) -> dict[str, dict[str, Any]]:
        """On what the results of this start depend."""
        return shape_of(self, self._run_context.what_shapes)

    def is_over(self) -> bool:
        """Whether the run ends before it has had all its steps."""
        return self.is_budget_spent()

    def forced_sampling(self) -> Mapping[str, Any]:
        """Parameters of sampling, besides the temperature, that agents get whatever they ask for.

        For a loss that takes recorded log-probabilities for the model's; none where it does not.
        """
        return {}

    def models_served(self, served: Served) -> "list[ServedModel]":
        """What of a version agents can call, and as which of their resources."""
        from agl_learning.trainer.serving import ServedModel

        sampling = {
            mode: sampling_of(temperature, self.max_tokens)
            for mode, temperature in (("val", self.eval_temperature), ("train", self.temperature))
        }
        served_as = (MODEL_NAME, self.resource_name, served.litellm_params)
        return [ServedModel(*served_as, sampling, self.forced_sampling())]

    def trained_model(self) -> TrainedModel | None:
        """Whose calls are learned from; None leaves it to the adapter."""
        return TrainedModel(name=MODEL_NAME)

    # --- a run

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
        from agl_learning.collect.task_order import TaskOrder
        from agl_learning.trainer.loop import Loop
        from agl_learning.trainer.opening import open_run
        from agl_learning.trainer.source import Tasks

        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError(f"{self.title}: there are no training tasks; pass train_dataset")
        self.check_datasets(train_dataset, val_dataset)
        warn_of_intervals(self.title, self, self.num_steps)
        begun = time.perf_counter()
        self._asked_to_stop = asyncio.Event()
        origin, self._origin = self._origin or await asyncio.to_thread(self.find_start), None
        async with open_run(self, origin) as session:
            tasks = Tasks(TaskOrder(len(train_dataset), self.seed), train_dataset)
            loop = self._running = Loop(self, session, tasks, val_dataset, self._asked_to_stop)
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

    def enter(self, session: "Session | None") -> None:
        """Have ``session`` be this one while a run, or a replay of it, runs."""
        self._session = session

    @property
    def session(self) -> "Session":
        """What exists while ``run`` runs.

        Raises:
            AlgorithmError: It does not.
        """
        if self._session is None:
            raise AlgorithmError(f"{self.title} is not running; this exists only while run() is")
        return self._session

    async def end_serving(self) -> None:
        """End it, where a version is served: its memory is needed for training."""
        if self._running is not None:
            await self._running.serving.end()

    def gateway(self) -> "Gateway":
        """What agents call; it has no model of our name yet.

        Raises:
            ConfigError: There is none, or it has such a model.
        """
        return free_gateway(self, self.title)

    def collector(self) -> "Collector":
        """What brings tasks to the runners and their experience back."""
        return Collector(
            self.get_store(),
            self.get_llm_proxy(),
            self.get_adapter(),
            self.rollout_config,
            infrastructure_failures=self.infrastructure_failures,
            seed=self.seed,
            asked_to_stop=self._asked_to_stop,
        )

    def ask_to_stop(self) -> bool:
        """End when the rollouts or the training under way have; what is done is kept."""
        return self._running is not None and self._running.ask_to_stop()

    def folder_of_run(self) -> Path | None:
        """Of the run that there is."""
        return self.get_run_folder() or self.folder_of_options()

    async def replay(self, step: int) -> "Replay":
        """Load the newest whole checkpoint before a step, and train from there up to it.

        Of each step it reads from the store what the run had collected for it. What the run wrote
        is not touched; a folder of its own, that goes afterwards, takes what is written.
        """
        from agl_learning.trainer.replay import replay

        return await replay(self, step)
