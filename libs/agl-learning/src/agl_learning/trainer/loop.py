"""The training loop: serve the model, roll out, choose what to learn from, update, again.

``Training`` is what every trainer shares: its options, publishing the model through the gateway,
evaluations, accounts, metrics and the summary. Two kinds say what one step is, and how a run goes
on after a kill:

- ``OnlineTraining``: the weights change in this process, and checkpoints outlive it (GRPO)
- ``FineTuning``: every step makes a whole version of the model somewhere else (SFT, DPO)
"""

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl.types import LLM, Dataset, RolloutConfig
from agl_learning.collect.collector import AS_ASKED, Collector
from agl_learning.resume.collection_journal import find_request, key_of, run_request
from agl_learning.run.start import check_identity, free_gateway
from agl_learning.trainer.loop_options import LoopOptions, check_evaluation, warn_of_intervals
from agl_models.gateways import entry_of, model_served, sampling_of
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.options import absolute, check_options
from agl_records.training_data import TrainedModel

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl_learning.collect.results import Collected
    from agl_learning.resume.collection_journal import Request
    from agl_learning.resume.session import Session
    from agl_learning.run.journal import Journal

logger = logging.getLogger("agl.learning")


@dataclass(kw_only=True, eq=False, repr=False)
class Training(Algorithm, LoopOptions):
    """What every trainer shares."""

    default_adapter = "rows"
    needs_gateway = True
    publishes = (LLM,)
    name: ClassVar[str] = "training"
    """Of the algorithm: in the ledger, in rollouts' metadata, in names of folders."""

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
        self._journal: Journal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = asyncio.Event()
        self._published_now = contextlib.AsyncExitStack()
        self._resources: dict[str, str] | None = None
        self._served = Served({})

    @property
    def title(self) -> str:
        """What messages begin with."""
        return type(self).__name__

    # --- what a kind of training says

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many the run is to have."""

    @abstractmethod
    def open(self, num_tasks: int) -> "AbstractAsyncContextManager[Session]":
        """A block in which the run has its folder, and everything is loaded.

        Raises:
            ConfigError: Something will not do; nothing was changed.
        """

    @abstractmethod
    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """A block in which ``version`` answers requests."""

    @abstractmethod
    async def step(self, train: Dataset[Any], val: Dataset[Any] | None) -> None:
        """Do the next step, or find that the run must end: then ``is_over`` says so."""

    @property
    @abstractmethod
    def version(self) -> Version:
        """The newest one."""

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is continued; JSON values."""
        named = ("seed", "deterministic")
        return {"algorithm": self.name, **{name: getattr(self, name) for name in named}}

    def check_identity(self, folder: Path, before: Mapping[str, Any]) -> None:
        """Refuse to continue as another run; see ``agl_learning.run.start.check_identity``."""
        is_forced = self._run_context.is_forced
        check_identity(self.title, self.identity(), folder, before, is_forced)

    def is_over(self) -> bool:
        """Whether the run ends before it has had all its steps."""
        return self.is_budget_spent()

    def forced_sampling(self) -> Mapping[str, Any]:
        """Parameters of sampling, besides the temperature, that agents get whatever they ask for.

        For a loss that takes recorded log-probabilities for the model's; none where it does not.
        """
        return {}

    def trained_model(self) -> TrainedModel | None:
        """Whose calls are learned from; None leaves it to the adapter."""
        return TrainedModel(name=MODEL_NAME)

    @abstractmethod
    def summed_up(self) -> dict[str, Any]:
        """What the summary says of this kind of training."""

    # --- the loop

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse options of evaluations where there is nothing to evaluate on."""
        check_evaluation(self.title, self, val_dataset)

    @property
    def session(self) -> "Session":
        """What exists while ``run`` runs.

        Raises:
            AlgorithmError: It does not.
        """
        if self._session is None:
            raise AlgorithmError(f"{self.title} is not running; this exists only while run() is")
        return self._session

    @property
    def journal(self) -> "Journal":
        """What the run has finished; only while ``run`` runs.

        Raises:
            AlgorithmError: It does not.
        """
        if self._journal is None:
            raise AlgorithmError(f"{self.title} is not running; it has no journal")
        return self._journal

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
        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError(f"{self.title}: there are no training tasks; pass train_dataset")
        self.check_datasets(train_dataset, val_dataset)
        warn_of_intervals(self.title, self, self.num_steps)
        start = time.perf_counter()
        self._loop, self._asked_to_stop = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(setattr, self, "_loop", None)
            stack.callback(setattr, self, "_session", None)
            stack.callback(setattr, self, "_journal", None)
            session = self._session = await stack.enter_async_context(self.open(len(train_dataset)))
            stack.push_async_callback(self.end_serving)
            stopped: StoppedError | None = None
            if getattr(self, "learning_rate", None) == 0:
                session.report.say_unchanging("learning_rate")
            try:
                while session.steps_done < self.num_steps and not self.is_over():
                    if self._asked_to_stop.is_set():
                        raise StoppedError(AS_ASKED)
                    await self.step(train_dataset, val_dataset)
                await self.evaluate_when_due(val_dataset, last=True)
            except StoppedError as error:
                if not self.is_budget_spent():  # of which the trainer speaks
                    stopped = StoppedError(f"{error}, after step {session.steps_done}")
                await self.keep_for_later()
            self.summary = {
                **self.summed_up(),
                "seconds": time.perf_counter() - start,
                "rewards": session.rewards,
                "val_rewards": session.val_rewards,
                **session.report.of_run(),
                **session.totals.summary(),
                "run_dir": str(session.folder),
            }
            session.report.summary(self.summary)
            if stopped is not None:
                raise stopped

    def ask_to_stop(self) -> bool:
        """End when the rollouts or the training under way have; what is done is kept."""
        if self._loop is None:
            return False
        self._loop.call_soon_threadsafe(self._stop_soon)
        return True

    def _stop_soon(self) -> None:
        logger.warning(
            "asked to stop: what is under way ends first. Asked once more, it ends at once; either "
            "way the run can be continued"
        )
        self._asked_to_stop.set()

    async def keep_for_later(self) -> None:
        """Save what is not on the disk yet: the run stops before its end."""

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

    # --- serving

    async def serving(self) -> dict[str, str]:
        """Have the newest version answer through the gateway; ids of resources per mode."""
        if self._resources is None:
            published = self._published(self.version)
            self._resources = await self._published_now.enter_async_context(published)
        return self._resources

    async def end_serving(self) -> None:
        """End it, where one is served."""
        self._resources = None
        await self._published_now.aclose()

    @contextlib.asynccontextmanager
    async def _published(self, version: Version) -> AsyncGenerator[dict[str, str]]:
        # What trains comes last: those are the latest resources of the store.
        sampling = {
            mode: sampling_of(temperature, self.max_tokens)
            for mode, temperature in (("val", self.eval_temperature), ("train", self.temperature))
        }
        async with self.serve(version) as served:
            self._served = served
            forced = self.forced_sampling()
            entry = entry_of(MODEL_NAME, served.litellm_params, sampling, forced)
            async with model_served(self.session.gateway, entry, self.get_store()):
                yield {
                    mode: await self._publish(version, mode, told)
                    for mode, told in sampling.items()
                }

    async def _publish(self, version: Version, mode: str, told: dict[str, Any]) -> str:
        llm = self.session.gateway.as_resource(model=MODEL_NAME, sampling_parameters=told)
        resources = {**(self.get_initial_resources() or {}), self.resource_name: llm}
        resources_id = f"{self.name}-{self.session.run_id}-{version.number}-{mode}"
        return (await self.publish_resources(resources, resources_id)).resources_id

    # --- evaluating

    async def evaluate_when_due(self, val: Dataset[Any] | None, *, last: bool = False) -> None:
        """Evaluate the newest version on the validation tasks, if it is its turn and was not yet.

        Args:
            val: The tasks; nothing is evaluated on none, or when the budget is spent.
            last: Whether no step comes after.
        """
        session, step = self.session, self.session.steps_done
        is_due = last or step == session.begun_at or step % (self.eval_every or step + 1) == 0
        is_done = session.is_evaluated(step) or self.is_budget_spent()
        if not is_due or val is None or len(val) == 0 or is_done:
            return
        from agl_learning.collect.step_metrics import collected_metrics

        collected = await self.evaluate(val)
        if collected.mean_reward is None:
            logger.warning(
                "there is no held-out reward after step %d: no rollout of its evaluation "
                "succeeded (%s)",
                step,
                ", ".join(f"{kind}: {count}" for kind, count in collected.failures().items()),
            )
        session.val_rewards.append((step, collected.mean_reward))
        measured = {**collected_metrics(collected), **collected.over_copies(self.eval_copies)}
        metrics = {f"val/{name}": value for name, value in measured.items()}
        start = session.generation.number
        line = {"step": step, "generation": start, **metrics}
        key = key_of(session, self.journal, "val")
        again = self.journal.last("evaluated", key=key) is not None
        await session.report.evaluation(step, line, again=again)
        self.evaluated(key, collected, line)

    @abstractmethod
    def evaluated(self, key: str, collected: "Collected", metrics: Mapping[str, Any]) -> None:
        """Note in the journal that the newest version was evaluated, by the request ``key``."""

    async def evaluate(self, dataset: Dataset[Any]) -> "Collected":
        """Run tasks in mode ``val`` at ``eval_temperature``, ``eval_copies`` times each.

        Their calls are excluded from training as ``not_trained_mode``. Only while ``run`` runs,
        for subclasses.

        Raises:
            AlgorithmError: The algorithm is not running.
        """
        session = self.session
        collected = await self.collect_evaluation([dataset[i] for i in range(len(dataset))])
        for row in (row for one in collected.ended for row in one.rows):
            collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
        await session.keep(collected, session.steps_done, self.version.number)
        return collected

    async def collect_evaluation(self, tasks: list[Any]) -> "Collected":
        """Run the tasks of an evaluation; their calls stay open."""
        request = find_request(self.session, self.journal, "val", tasks, self.eval_copies)
        return await self.run_request(request)

    async def run_request(self, request: "Request") -> "Collected":
        """Run its tasks with the newest version; see ``collection_journal.run_request``."""
        resources, version = await self.serving(), self.version.number
        return await run_request(
            *(self.session, self.journal, request, version, resources),
            self._served.why_silent,
            self.is_budget_spent,
        )
