"""What a trainer is asked: its options, and what its loop wants to know of it."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError
from agl.types import LLM, RolloutConfig
from agl_learning.collect.collector import Collector
from agl_learning.collect.task_order import plan_order
from agl_learning.run.folder import check_identity, shape_of
from agl_learning.run.start import Origin, free_gateway
from agl_models.gateways import sampling_of
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.options import (
    AboveZero,
    Count,
    Name,
    NotNegative,
    absolute,
    check_credit,
    check_options,
)
from agl_records.training_data import TrainedModel
from agl_runs.infrastructure import InfrastructureFailures

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway
    from agl_learning.collect.results import Collected
    from agl_learning.collect.task_order import Tasks
    from agl_learning.run.checkpoint import Progress
    from agl_learning.trainer.session import Session
    from agl_learning.trainer.source import Runners, Source

Credit = Annotated[str | dict[str, Any] | None, check_credit]


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


@dataclass(frozen=True)
class ServedModel:
    """A model that agents can call."""

    name: str
    """What the gateway calls it."""
    resource: str
    """Name of the resource that an agent gets."""
    litellm_params: Mapping[str, Any]
    """Of its server."""
    sampling: Mapping[str, dict[str, Any]]
    """Mode -> parameters that agents are told."""
    forced: Mapping[str, Any]
    """Parameters, besides the temperature, that they get whatever they ask for."""


@dataclass(kw_only=True, eq=False, repr=False)
class Learning(Algorithm):
    """What every trainer says of itself; ``Training`` runs it.

    Args:
        temperature: At which rollouts are sampled; the gateway has the agent use it.
        max_tokens: Of one answer, where the agent sets no limit.
        eval_every: Evaluate on the validation tasks after so many steps; in any case before the
            first and after the last. Without such tasks it is refused, like the next two.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs, as for ``val/pass@k``.
        task_order: In which order the tasks come: ``shuffled``, every one once before any comes
            again; ``as_given``; or ``type`` and options of another.
        seed: Of tasks' order, sampling, selection and training.
        deterministic: Runs with one seed are equal bit for bit, where our own server answers (agl
            serve) and our own code trains; it costs time. See docs/explanation/reproducibility.md.
        run_dir: Folder for what the training writes; None takes that of the run (``run_dir`` of the
            file or the trainer), and where it has none a new one under ``agl-runs``.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        unresponsive_seconds: A rollout whose runner is silent for longer is tried once more, by
            whichever runner is there; None waits for the limit above.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it: ``exclude`` it, ``drop_group`` (all rollouts of its
            task), or ``keep`` it.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    default_adapter = "rows"
    needs_gateway = True
    publishes = (LLM,)
    name: ClassVar[str] = "training"
    """Of the algorithm: in the ledger, in rollouts' metadata, in names of folders."""
    makes_versions: ClassVar[bool] = False
    """Whether each step makes a version that outlives the process, and is saved at once."""

    safe_options = frozenset({"eval_every", "eval_copies", "show_progress", "unresponsive_seconds"})

    temperature: NotNegative = 1.0
    max_tokens: Count | None = None
    eval_every: Count | None = None
    eval_temperature: NotNegative = 0.0
    eval_copies: Count = 1
    task_order: str | dict[str, Any] = "shuffled"
    seed: int = 0
    deterministic: bool = False
    run_dir: str | None = None
    resource_name: Name = "main_llm"
    rollout_timeout_seconds: AboveZero | None = 300.0
    unresponsive_seconds: AboveZero | None = 60.0
    credit: Credit = None
    infrastructure_failures: InfrastructureFailures = "exclude"
    show_progress: bool = True

    def __post_init__(self) -> None:
        check_options(self.title, self)
        plan_order(self.task_order, f"{self.title}: task_order")
        self.run_dir = absolute(self.run_dir)
        if self.credit is not None:
            self.adapter_options = {"credit": self.credit}
        self.rollout_config = RolloutConfig(
            timeout_seconds=self.rollout_timeout_seconds,
            unresponsive_seconds=self.unresponsive_seconds,
            max_attempts=2,
            retry_condition=["unresponsive"],
        )
        self._session: Session | None = None
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

    def saves_after(self, number: int, last: bool, asked: bool) -> bool:
        """Whether a checkpoint comes after a step; ``asked``, a hook wants one."""
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
        sampling = {
            mode: sampling_of(temperature, self.max_tokens)
            for mode, temperature in (("val", self.eval_temperature), ("train", self.temperature))
        }
        served_as = (MODEL_NAME, self.resource_name, served.litellm_params)
        return [ServedModel(*served_as, sampling, self.forced_sampling())]

    def trained_model(self) -> TrainedModel | None:
        """Whose calls are learned from; None leaves it to the adapter."""
        return TrainedModel(name=MODEL_NAME)

    # --- what it works with

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
