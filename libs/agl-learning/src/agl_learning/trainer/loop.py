"""The training loop: serve the model, roll out, learn, save, again.

A trainer has a source of experience (``agl_learning.trainer.source``) and a run
(``agl_learning.run``), and is of one of two kinds, which say what it is to learn:

- ``agl_learning.trainer.online.OnlineTraining``: the weights change in this process, and a
  checkpoint now and then is what outlives it (GRPO)
- ``agl_learning.trainer.version.FineTuning``: every step makes a whole version of the model
  somewhere else, and the checkpoint says where (SFT, DPO, trainers elsewhere)

A run that is killed goes on from its newest whole checkpoint. What came after is done again with
the rollouts that it had; only what was under way runs once more.
"""

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl.types import LLM, Dataset, RolloutConfig
from agl_learning.collect.collector import AS_ASKED, Collector
from agl_learning.run.folder import (
    begun_by_trainer,
    cancel_dead_starts,
    check_identity,
    hold_run,
    mark_lost,
    next_generation,
    read_generation,
    shape_changes,
    shape_of,
    write_generation,
)
from agl_learning.run.start import Origin, free_gateway
from agl_learning.trainer.loop_options import LoopOptions, check_evaluation, warn_of_intervals
from agl_models.gateways import entry_of, model_served, sampling_of
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.options import absolute, check_options
from agl_records.training_data import TrainedModel

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore
    from agl_learning.collect.results import Collected
    from agl_learning.run.checkpoint import Progress
    from agl_learning.run.session import Session
    from agl_learning.trainer.replay_result import Replay
    from agl_learning.trainer.source import Ahead, InStep, Tasks

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
        self._source: InStep | Ahead | None = None
        self._session: Session | None = None
        self._origin: Origin | None = None
        self._checkpoint: Path | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = asyncio.Event()
        self._begins_to_serve = asyncio.Lock()
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

    @abstractmethod
    def find_source(self, tasks: "Tasks", taken: int) -> "InStep | Ahead":
        """Where rollouts come from."""

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

    # --- where a run begins

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

    @contextlib.asynccontextmanager
    async def _open(self, train: Dataset[Any]) -> "AsyncGenerator[Session]":
        """A block in which the run has its folder, and goes on from its newest checkpoint."""
        from agl_learning.collect.task_order import TaskOrder
        from agl_learning.run.checkpoint import set_aside
        from agl_learning.trainer.source import Tasks

        gateway = self.gateway()
        origin, self._origin = self._origin or await asyncio.to_thread(self.find_start), None
        folder, progress = origin.folder, origin.progress()
        with hold_run(folder):
            before, about = read_generation(folder), begun_by_trainer(self, folder)
            shape = shape_of(self, self._run_context.what_shapes)
            about |= {"algorithm": self.name, "identity": self.identity(), "shape": shape}
            if not origin.is_same_run or origin.checkpoint is None:
                about["origin"] = origin.other_run
            start = next_generation(folder, **about)
            self._checkpoint = origin.checkpoint
            session = self._session = self.session_of(start, folder, progress, gateway)
            session.begun_at = 0 if origin.is_same_run else progress.step
            try:
                with session.report:
                    await self.begin(origin.checkpoint, progress, folder)
                    session.collector.model = self.trained_model()
                    write_generation(folder, start)
                    await self._go_back(session, before.shape if before else {}, shape)
                    set_aside(folder, progress.step)
                    order = TaskOrder(len(train), self.seed)
                    self._source = self.find_source(Tasks(order, train), progress.taken)
                    yield session
            finally:
                await self.clean_up()

    def session_of(
        self, start: Any, folder: Path, progress: "Progress", gateway: Any, *, shows: bool = True
    ) -> "Session":
        """What exists while the run, or a replay of it, runs."""
        from agl_learning.collect.step_metrics import Totals
        from agl_learning.reports.report import Report
        from agl_learning.run.records import Records
        from agl_learning.run.session import Session

        show, steps = shows and self.show_progress, self.num_steps
        return Session(
            algorithm=self.name,
            folder=folder,
            generation=start,
            report=Report(self, self.name, folder, steps, progress.step, show),
            store=self.get_store(),
            gateway=gateway,
            collector=self.collector(),
            records=Records(self.get_store(), self.name, start),
            totals=Totals(progress.totals),
            steps_done=progress.step,
            rewards=list(progress.rewards),
            val_rewards=list(progress.val_rewards),
        )

    async def _go_back(
        self, session: "Session", before: Mapping[str, Any], shape: Mapping[str, Any]
    ) -> None:
        """Have nothing count that earlier starts did after the checkpoint."""
        step = session.steps_done
        evaluated, records = session.is_evaluated(step), session.records

        def is_lost(part: Any) -> bool:
            number = part.step or 0
            return number > step or (number == step and part.mode == "val" and not evaluated)

        await mark_lost(session.store, session.run_id, is_lost)
        known = session.report.go_back(step, evaluated)
        lacks = {*range(session.begun_at + 1, step + 1)} - known
        await records.read(0 if lacks else step)
        if lacks:
            session.report.go_back(step, evaluated, records.metrics())
        if changes := shape_changes(before, shape):
            logger.warning(
                "the run goes on after step %d as what it was not: %s. What came after that step "
                "is drawn anew",
                step,
                ", ".join(changes),
            )
            await records.redraw("val", step)

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
    def source(self) -> "InStep | Ahead":
        """Where the rollouts of ``run`` come from.

        Raises:
            AlgorithmError: It does not run.
        """
        if self._source is None:
            raise AlgorithmError(f"{self.title} is not running; it asks for no rollouts")
        return self._source

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

    # --- the loop

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
        self._begins_to_serve = asyncio.Lock()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(setattr, self, "_loop", None)
            stack.callback(setattr, self, "_session", None)
            stack.callback(setattr, self, "_source", None)
            session = await stack.enter_async_context(self._open(train_dataset))
            stack.push_async_callback(self.end_serving)
            stopped: StoppedError | None = None
            if getattr(self, "learning_rate", None) == 0:
                session.report.say_unchanging("learning_rate")
            saved_at = session.steps_done
            try:
                while session.steps_done < self.num_steps and not self.is_over():
                    if self._asked_to_stop.is_set():
                        raise StoppedError(AS_ASKED)
                    if await self._step(val_dataset):
                        saved_at = session.steps_done
                await self._leave(val_dataset)
            except StoppedError as error:
                if not self.is_budget_spent():  # of which the trainer speaks
                    stopped = StoppedError(f"{error}, after step {session.steps_done}")
                await self.source.wait()
                if session.steps_done > saved_at:
                    await self.save_checkpoint()
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

    async def _step(self, val: Dataset[Any] | None) -> bool:
        """Do the next step; whether a checkpoint was saved after it."""
        session, start = self.session, time.perf_counter()
        await self.evaluate_when_due(val)
        after, waited = session.steps_done, time.perf_counter()
        number = after + 1
        collected = await self.source.next(after)
        idle = time.perf_counter() - waited
        learned = await self.learn(collected, number)
        # Not before: rows of an update that failed must not be in the store as trained.
        await session.keep(collected, number, self.version.number)
        session.steps_done = number
        session.rewards.append(collected.mean_reward)
        end = time.perf_counter()
        await self.after_step(number, collected, learned.trained)
        metrics = {
            "step": number,
            "generation": session.generation.number,
            **learned.metrics,
            **self.idle_metrics(idle),
            "time/step": end - start,
        }
        before, weights = session.records.find("train", after), self.digest()
        done = before if before and before.metrics is not None else None
        await session.report.step(number, metrics, again=done is not None)
        if done is not None and done.weights != weights:
            logger.warning(
                "step %d, trained again with the same rollouts, gave other weights (%s) than in an "
                "earlier start of the run (%s): another machine, version or number of threads "
                "computes otherwise",
                *(number, weights, done.weights),
            )
        await session.records.done("train", after, metrics, weights=weights, rows=learned.rows)
        last = number == self.num_steps or self.is_over()
        if not self.makes_versions:
            await (self._leave(val) if last else self.evaluate_when_due(val))
        if is_saved := self.saves_after(number, last):
            await self.save_checkpoint()
        return is_saved

    def idle_metrics(self, seconds: float) -> dict[str, float]:
        """Of the time in which nothing was computed, for rollouts had not ended."""
        return {}

    async def _leave(self, val: Dataset[Any] | None) -> None:
        """No step comes any more: account for rollouts of such, and evaluate.

        If such steps come after all, they are drawn anew.
        """
        session = self.session
        if not self.is_budget_spent():
            resources = await self.serving() if (left := await self.source.stop()) else {}
            for after, tasks in left:
                given = (self.version.number, resources["train"])
                copies = self.num_copies
                one = await session.ask("train", after, tasks, copies, *given, at_once=True)
                for row in (row for ended in one.ended for row in ended.rows):
                    one.ledger.exclude_row(row, "unused_group", "the run ended before its step")
                await session.keep(one, session.steps_done, self.version.number)
            if left:
                await session.records.redraw("train", session.steps_done)
        await self.evaluate_when_due(val, last=True)

    async def save_checkpoint(self) -> None:
        """Save what the next start goes on from."""
        from agl_learning.run.checkpoint import Progress, making, remove_older

        session, number = self.session, self.session.steps_done
        progress = Progress(
            step=number,
            version=self.version.number,
            totals=dict(session.totals.counts),
            taken=self.source.taken,
            rewards=session.rewards,
            val_rewards=session.val_rewards,
            start=asdict(session.generation),
            **self.progress(),
        )
        folder = session.folder / "checkpoints" / f"step-{number:06d}"

        def write() -> None:
            session.report.sync()
            with making(folder, progress) as partial:
                self.save(partial)
            if (keep := getattr(self, "keep_last", None)) is not None:
                remove_older(session.folder, keep, session.val_rewards)

        await asyncio.to_thread(write)
        self._checkpoint = folder
        path: Any = self.version.ref or folder
        await self.tell("on_checkpoint_saved", step=number, path=path)

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

    # --- what the source asks

    @property
    @abstractmethod
    def num_copies(self) -> int:
        """How often each task of a step runs."""

    async def collect(
        self, after: int, gather: "Callable[[], Awaitable[Collected]]"
    ) -> "Collected":
        """What the step after so many learns from; see ``agl_learning.trainer.source``."""
        return await self._collect("train", after, gather)

    async def _collect(
        self, mode: Any, after: int, gather: "Callable[[], Awaitable[Collected]]"
    ) -> "Collected":
        async def why_silent() -> str | None:
            return await self._served.why_silent()

        return await self.session.collect(mode, after, gather, why_silent, self.is_budget_spent)

    async def ask(self, after: int, tasks: Sequence[Any], first_group: int) -> "Collected":
        """Run tasks of a step with the newest version."""
        resources = await self.serving()
        given = (self.num_copies, self.version.number, resources["train"], first_group)
        return await self.session.ask("train", after, tasks, *given)

    def key(self, after: int) -> str:
        """Under which the rollouts of a step stand by now."""
        return self.session.records.key("train", after)

    # --- serving

    async def serving(self) -> dict[str, str]:
        """Have the newest version answer through the gateway; ids of resources per mode."""
        async with self._begins_to_serve:  # a source may ask several times at once
            if self._resources is None:
                published = self._published(self.version)
                self._resources = await self._published_now.enter_async_context(published)
            return self._resources

    async def end_serving(self) -> None:
        """End it, where one is served."""
        if self._source is not None:
            await self._source.stop()
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
        line = {"step": step, "generation": session.generation.number, **metrics}
        before = session.records.find("val", step)
        again = before is not None and before.metrics is not None
        await session.report.evaluation(step, line, again=again)
        await session.records.done("val", step, line)

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
        session, step = self.session, self.session.steps_done

        async def gather() -> "Collected":
            resources = await self.serving()
            given = (self.eval_copies, self.version.number, resources["val"])
            return await session.ask("val", step, tasks, *given)

        return await self._collect("val", step, gather)

    # --- once more

    def folder_of_run(self) -> Path | None:
        """Of the run that there is."""
        return self.get_run_folder() or self.folder_of_options()

    def enter(self, session: "Session | None") -> None:
        """Have ``session`` be this one."""
        self._session = session

    async def replay(self, step: int) -> "Replay":
        """Load the newest whole checkpoint before a step, and train from there up to it.

        Of each step it reads from the store what the run had collected for it. What the run wrote
        is not touched; a folder of its own, that goes afterwards, takes what is written.
        """
        from agl_learning.trainer.replay import replay

        return await replay(self, step)
