"""A trainer: what its loop asks of it, and what can be asked of it while it runs.

A trainer has a run (``agl_learning.run``), a source of experience (``trainer.source``) and a loop
(``trainer.loop``) which asks it what to learn. It is of one of two kinds:

- ``agl_learning.trainer.online.OnlineTraining``: the weights change in this process, and a
  checkpoint now and then is what outlives it (GRPO)
- ``agl_learning.trainer.version.FineTuning``: every step makes a whole version of the model
  somewhere else, and the checkpoint says where (SFT, DPO, trainers elsewhere)
"""

import asyncio
import inspect
import logging
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from agl.algorithm.base import Algorithm
from agl.algorithm.gateway import Gateway
from agl.errors import AlgorithmError, ConfigError
from agl.store.base import LightningStore
from agl.types import LLM, Dataset, RolloutConfig
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.task_order import Tasks, plan_order
from agl_learning.run.checkpoint import Progress, check_writable
from agl_learning.run.folder import cancel_dead_starts, read_generation
from agl_learning.run.start import Origin, free_gateway
from agl_learning.trainer.learned import Learned
from agl_learning.trainer.options import Credit, Evaluation, Rollouts
from agl_models.versions import MODEL_NAME, Served, ServedModel, Version
from agl_records.training_data import TrainedModel
from agl_runs.description import options_of
from agl_runs.differences import shape_changes
from agl_runs.failures import Failures
from agl_runs.options import Count, Name, Named, NotNegative, absolute, check_options, need_tasks

if TYPE_CHECKING:
    from agl.algorithm.adapter import TraceAdapter
    from agl_learning.trainer.session import Session
    from agl_learning.trainer.source import Runners, Source

logger = logging.getLogger("agl.learning")


class Running(Protocol):
    """A run that is under way: the loop."""

    def ask_to_stop(self) -> bool: ...

    async def end_serving(self) -> None: ...


@dataclass(kw_only=True, eq=False, repr=False)
class Training(Named, Algorithm):
    """What every trainer shares: serve a model, roll out, learn, save, again.

    Args:
        temperature: Temperature of rollouts; the gateway has the agent use it.
        max_tokens: Limit of one answer, if the agent sets none.
        evaluation: On the validation tasks; without such tasks its options are refused.
        task_order: In which order the tasks come: ``shuffled``, every one once before any comes
            again; ``as_given``; or ``type`` and options of another.
        seed: Seed for the order of tasks, sampling, selection and training.
        deterministic: Runs with one seed are equal bit for bit, where our own server answers (agl
            serve) and our own code trains; it costs time. See docs/explanation/reproducibility.md.
        run_dir: Folder for what the training writes; None takes that of the run (``run_dir`` of the
            file or the trainer), and where it has none a new one under ``agl-runs``.
        resource_name: Name of the resource that the agent gets.
        rollouts: Limits of rollouts.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        failures: What to do with rollouts that failed, by what failed them: ``exclude`` them,
            ``drop_group`` (their siblings, too), ``retry``, ``keep`` with the reward that they
            gave, or ``penalise``. See docs/explanation/failures.md.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    default_adapter = "rows"
    needs_gateway = True
    publishes = (LLM,)
    name: ClassVar[str] = "training"
    """Of the algorithm: in the ledger, in rollouts' metadata, in names of folders."""
    makes_versions: ClassVar[bool] = False
    """Whether each step makes a version that outlives the process, and is saved at once."""

    safe_options = frozenset(
        {
            *("evaluation.every", "evaluation.copies", "show_progress"),
            *("rollouts.unresponsive_seconds", "failures.stop_after"),
        }
    )

    temperature: NotNegative = 1.0
    max_tokens: Count | None = None
    evaluation: Evaluation = Evaluation()
    task_order: str | dict[str, Any] = "shuffled"
    seed: int = 0
    deterministic: bool = False
    run_dir: str | None = None
    resource_name: Name = "main_llm"
    rollouts: Rollouts = Rollouts()
    credit: Credit = None
    failures: Failures = Failures()
    show_progress: bool = True

    def __post_init__(self) -> None:
        check_options(self.title, self)
        plan_order(self.task_order, f"{self.title}: task_order")
        self.run_dir = absolute(self.run_dir)
        if self.credit is not None:
            self.adapter_options = {"credit": self.credit}
        self.rollout_config = RolloutConfig(
            timeout_seconds=self.rollouts.timeout_seconds,
            unresponsive_seconds=self.rollouts.unresponsive_seconds,
            max_attempts=2,
            retry_condition=["unresponsive"],
        )
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._session: Session | None = None
        self.asked_to_stop = asyncio.Event()
        """Set when the run is to stop."""
        self.running: Running | None = None
        """The run that is under way."""
        self.origin: Origin | None = None
        """Where it begins, if that was found already."""

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
            ConfigError: There is no gateway, or it has a model of our name; checkpoint or folder
                are not usable, or nothing is left to do.
        """

    @abstractmethod
    async def begin(self, checkpoint: Path | None, progress: Progress, folder: Path) -> None:
        """Load the model, or find the version, of a checkpoint, or those of the beginning."""

    @abstractmethod
    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """A block in which ``version`` answers requests."""

    @property
    @abstractmethod
    def num_copies(self) -> int:
        """How often each task of a step runs."""

    @abstractmethod
    def find_source(self, runners: "Runners", tasks: Tasks, taken: int) -> "Source":
        """Where rollouts come from, when so many tasks were taken before."""

    @abstractmethod
    async def learn(self, collected: Collected, number: int) -> Learned:
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

    @property
    def num_kept(self) -> int | None:
        """How many of the newest checkpoints stay; None keeps all."""
        return None

    def sampling_seconds(self) -> float:
        """How long the model has sampled in this start; 0 where its server does not say."""
        return 0.0

    async def after_step(self, number: int, collected: Collected, trained: bool) -> None:
        """Look whether the run is to go on.

        Raises:
            AlgorithmError: It is not.
        """

    def saves_after(self, number: int, last: bool, asked: bool) -> bool:
        """Whether a checkpoint comes after a step; ``asked``, a hook wants one."""
        return True

    def is_usable(self, checkpoint: Path) -> bool:
        """Whether what a whole checkpoint refers to is there, too."""
        return True

    async def clean_up(self) -> None:
        """Let go of what ``begin`` and the others hold; called at the end, whatever happened."""

    def shape(self, folder: Path) -> dict[str, Any]:
        """On what the results of a start in a folder depend, see ``agl_runs.differences``."""
        others = dict(self._run_context.what_shapes)
        return {"options": options_of(self), "others": others, "folder": str(folder)}

    @property
    def depends_on_steps(self) -> bool:
        """Whether a step is trained otherwise if the run has more steps, as by a schedule."""
        return False

    def changed_options(self, folder: Path, start: int | None = None) -> list[str]:
        """How options differ from those of the run in a folder, or of a ``start`` of it."""
        begun, now = read_generation(folder), {**self.shape(folder), "others": None}
        then = begun and (begun.shape if start is None else begun.shape_at(start))
        with_steps = bool(start) and self.depends_on_steps
        return shape_changes(then, now, self, with_steps) if then else []

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder of a run with other options, unless forced, or an unwritable one."""
        check_writable(folder)
        if (changes := self.changed_options(folder)) and not self._run_context.is_forced:
            raise ConfigError(
                f"{self.title}: {str(folder)!r} holds a run with other options: "
                f"{'; '.join(changes)}. Continue it with what it had, give another run_dir, or go "
                "on all the same with force=True (agl run --force)"
            )

    def is_over(self) -> bool:
        """Whether no step comes any more: the one question of loops and of what cleans up."""
        done = self.session.steps_done
        return done >= self.num_steps or bool(self.why_over()) or self.is_budget_spent()

    def why_over(self) -> str:
        """Why no step comes any more, though some are left; "" where one does."""
        return self.session.requests.ends

    async def check_end(self) -> None:
        """Look whether the run may end well, when no step comes any more.

        Raises:
            AlgorithmError: It may not: it trained nothing.
        """

    def forced_sampling(self) -> Mapping[str, Any]:
        """Parameters of sampling, besides the temperature, that agents get whatever they ask for.

        For a loss that takes recorded log-probabilities for the model's; none where it does not.
        """
        return {}

    def models_served(self, served: Served) -> "list[ServedModel]":
        """What of a version agents can call, and as which of their resources."""
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        sampling = {
            "val": {"temperature": self.evaluation.temperature, **limit},
            "train": {"temperature": self.temperature, **limit},
        }
        served_as = (MODEL_NAME, self.resource_name, served.litellm_params)
        return [ServedModel(*served_as, sampling, self.forced_sampling())]

    def trained_model(self) -> TrainedModel | None:
        """Whose calls are learned from; None leaves it to the adapter."""
        return TrainedModel(name=MODEL_NAME)

    # --- the run

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse to begin without tasks, or with options of evaluations and none to evaluate on."""
        need_tasks(self.title, train_dataset)
        self.evaluation.check_tasks(self.title, type(self).evaluation, val_dataset)

    def check_adapter(self, adapter: "TraceAdapter[Any]") -> None:
        """Refuse one that makes no training rows: it takes no attempts."""
        if "attempts" not in inspect.signature(adapt := adapter.adapt).parameters:
            raise ConfigError(
                f"{self.title}: it learns from training rows, and {adapt.__qualname__} makes none. "
                "Use the adapter 'rows', or leave the adapter out"
            )

    def intervals(self) -> dict[str, int | None]:
        """Option -> after how many steps it does something, as well as at the end."""
        return {"evaluation": self.evaluation.every}

    async def clear_leftovers(self, store: LightningStore) -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        # It refuses what run() would refuse, so that nothing is cancelled for a start that fails.
        origin = self.origin = await asyncio.to_thread(self.find_start)
        await cancel_dead_starts(store, origin.folder, origin.home)

    async def end_serving(self) -> None:
        """End it, where a version is served: its memory is needed for training."""
        if self.running is not None:
            await self.running.end_serving()

    def ask_to_stop(self) -> bool:
        """End when the rollouts or the training under way have; what is done is kept."""
        return self.running is not None and self.running.ask_to_stop()

    def ask_to_end(self, why: str = "") -> None:
        """Have no more steps after the one under way: evaluate, save, and end as after the last.

        For hooks, as are the next two. The log and the summary say ``why``.

        Raises:
            AlgorithmError: The run has not begun, as in ``on_run_start``, or is over.
        """
        self.session.requests.end(self.session.steps_done, why)

    def ask_to_save(self) -> None:
        """Save a checkpoint after the step under way, or the next one that trains something."""
        self.session.requests.saves = True

    def ask_to_evaluate(self) -> None:
        """Evaluate on the validation tasks, if there are any, after the step under way."""
        self.session.requests.evaluates = True

    # --- what it works with

    @property
    def hooks(self) -> Sequence[object]:
        """Objects that were given to the trainer."""
        return self._run_context.hooks or ()

    def enter(self, session: "Session | None") -> None:
        """Have ``session`` be this one while a run, or a replay of it, runs."""
        self._session = session

    async def leave(self) -> None:
        """Clean up, and have no session; if the run has failed, its error is raised."""
        failed = sys.exception()
        try:
            await self.clean_up()
        except Exception:
            if failed is None:
                raise
            logger.exception("%s: clean_up failed, after the run had", self.title)
        finally:
            self.enter(None)

    @property
    def session(self) -> "Session":
        """What exists while ``run`` runs.

        Raises:
            AlgorithmError: It does not.
        """
        if self._session is None:
            raise AlgorithmError(f"{self.title} is not running; this exists only while run() is")
        return self._session

    def gateway(self) -> Gateway:
        """What agents call; it has no model of our name yet.

        Raises:
            ConfigError: There is none, or it has such a model.
        """
        return free_gateway(self, self.title)

    def collector(self) -> Collector:
        """What brings tasks to the runners and their experience back."""
        return Collector(
            self.get_store(),
            self.get_llm_proxy(),
            self.get_adapter(),
            self.rollout_config,
            failures=self.failures,
            seed=self.seed,
            asked_to_stop=self.asked_to_stop,
        )
