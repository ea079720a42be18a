"""``PolicyTraining``: reinforcement learning of a language model on one machine.

Each step runs P tasks G times through the agent, makes advantages of the rewards, and takes
gradient steps on the tokens that the model sampled. What sets the algorithms apart is in a module
each: ``grpo``, ``rloo``, ``reinforce``, ``gspo``, ``cispo``, ``ppo`` and ``distillation``. What
they share of the mathematics is in ``loss`` and ``agl_learning.advantages.weighing``, the loop in
``agl_learning.trainer.online``.
"""

import contextlib
import random
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.errors import ConfigError, UnknownArgumentError
from agl_learning.advantages.estimator_option import Foreseen
from agl_learning.collect.prompt_checks import unknown_token_id
from agl_learning.collect.step_metrics import version_lag
from agl_learning.garbage import without_collections
from agl_learning.run.checkpoint import home_of, making
from agl_learning.trainer.online import OnlineTraining
from agl_learning.trainer.options import Lora
from agl_models.processes.engines import ENGINES, EngineServer, check_server
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.training_data import TrainedModel
from agl_runs.options import AboveZero, Count, NotNegative, check_place, pick_options
from agl_torch.models import use_deterministic_algorithms
from agl_torch.option_names import explain
from agl_torch.options import (
    KL,
    Clip,
    Dtype,
    LearnerOptions,
    Loss,
    Memory,
    Optimizer,
    SamplingCorrection,
    Schedule,
    Server,
    check_learner,
)

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.weighing import Weighed
    from agl_learning.run.start import Origin
    from agl_records.training_data import TrainingRow
    from agl_torch.critic import Critic
    from agl_torch.learner import Objective
    from agl_torch.loss import Gain, Tokens

REFERENCE = "reference"
"""The model that a run began with, in its folder, where something is compared with it."""


@dataclass(kw_only=True, eq=False, repr=False)
class PolicyTraining(OnlineTraining):
    """What the algorithms of this package share.

    The model is served on an OpenAI-compatible address by this process and trained in place; the
    agent reaches it through the gateway as the resource ``resource_name``. Use it with a dataset
    of tasks and an agent that returns (or emits) a reward.

    Args:
        model: A folder or Hugging Face name, a ``transformers`` model, or a function that builds
            one. With the strategy ``cs`` give a function rather than a model: runners are forked
            before it is called.
        tokenizer: Likewise, with a chat template; None takes it from where the model comes.
        seed: Seed for tasks, minibatches and sampling. Runs with one seed have the same tasks and
            draws, and are equal up to rounding.
        deterministic: Runs with one seed are equal bit for bit, see "The same seed, the same run".
        device: For example ``cuda:0``; None takes a GPU if there is one.
        torch_threads: Threads of a torch operation; None leaves it to torch, and takes 1 with
            ``deterministic``. For a tiny model 1 is fastest.
        server: The server that samples.
        epochs: Passes over a step's rows.
        minibatch_rows: Rows per gradient step; None takes all of them at once.
        memory: Options that save memory.
        loss: What the tokens of a step weigh in the loss.
        clip: How far a ratio of probabilities may be from 1.
        learning_rate: Learning rate of the optimiser.
        optimizer: The optimiser of the weights.
        schedule: How the learning rate changes over time.
        entropy_bonus: Reward for undecided tokens, per nat; keeps the model exploring.
        kl: Penalty on the divergence from the start.
        sampling_correction: How an update corrects a mismatch between trainer and sampler.
        dtype: Type in which the model computes: ``bfloat16``, the default on a GPU that has it, or
            ``float32``. Weights are float32 in any case: steps of 1e-6 get lost in 16 bits. vLLM
            and SGLang sample in ``bfloat16`` unless this says ``float32``.
        lora: Train an adapter instead of the model (LoRA, arXiv:2106.09685); it is what checkpoints
            have. It wants about ten times the learning rate. Needs ``agl-torch[lora]``.
    """

    safe_options = frozenset({"memory.check"})
    models: ClassVar[tuple[str, ...]] = ("model",)
    """Options that are models, each perhaps a path."""
    penalises_loss: ClassVar[bool] = True
    """Whether ``kl`` is in the loss; else it is in the rewards."""
    why_unused = ("rejected", "the trainer finds its row far likelier than its sampler did")

    model: Any = field(kw_only=False)
    tokenizer: Any = field(default=None, kw_only=False)
    temperature: AboveZero = 1.0
    device: str | None = None
    torch_threads: Count | None = None
    server: Server = Server()
    epochs: Count = 1
    minibatch_rows: Count | None = None
    memory: Memory = Memory()
    loss: Loss = Loss()
    clip: Clip = Clip()
    learning_rate: NotNegative = 1e-6
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    entropy_bonus: NotNegative = 0.0
    kl: KL = KL()
    sampling_correction: SamplingCorrection = SamplingCorrection()
    dtype: Dtype = "auto"
    lora: Lora | None = None

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        for option in options:
            if hint := explain(cls, option):
                raise UnknownArgumentError(f"{cls.__name__}: unknown option {option!r}.{hint}")
        return super().__new__(cls, *arguments, **options)

    @classmethod
    def explain_option(cls, option: str, _: object = None) -> str:
        """What ``agl.plugins.schema`` says of another trainer's name of an option."""
        return explain(cls, option)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weighing.check_copies(self.title, group_size=self.group_size)
        check_learner(self.title, self)
        check_server(self.title, self.server.type, self.deterministic, self.max_staleness)
        self._sampling_copy: Any = None
        self._has_adapter_served = False
        places = (*self.models, "tokenizer")
        check_place(self.title, **{name: getattr(self, name) for name in places})

    def gain(self, tokens: "Tokens") -> "Gain":
        """What is made as large as it can, of each token: by default PPO's clipped surrogate."""
        return self.clipped(tokens.log_ratio_N, tokens.advantages_N)

    def clipped(self, log_ratio_N: "Tensor", advantages_N: "Tensor") -> "Gain":
        """The clipped surrogate of ratios, within the bounds of ``clip``."""
        from agl_torch.loss import clipped

        bounds = (self.clip.low, self.clip.high, self.clip.ratio_cap)
        return clipped(log_ratio_N, advantages_N, *bounds)

    def objective(self) -> "Objective":
        """How its gradients differ from those of others."""
        from agl_torch.learner import Objective

        return Objective(self.gain, self.loss.type, self.loss.constant, self.penalises_loss)

    def build_critic(self, model: Any) -> "Critic | None":
        """What expects rewards, beside the model that is trained; none, unless one is needed."""
        return None

    def check_start(self, origin: "Origin") -> None:
        """Refuse to go on where the start, which is compared with or built on, is nowhere."""
        if self._keeps_start and origin.checkpoint is not None:
            self._find_start(origin.folder, origin.home)

    @without_collections()
    def load(self, checkpoint: Path | None, folder: Path) -> None:
        """Put model, tokenizer, optimiser and server where they were, or at their beginning."""
        import torch

        from agl_torch.adapter import base_chain, copy_trained, refresh, share_weights
        from agl_torch.checkpoint import restore
        from agl_torch.learner import Learner
        from agl_torch.models import check_vocabulary, load_tokenizer, resolve_dtype
        from agl_torch.server import InferenceServer

        if self.deterministic:
            use_deterministic_algorithms(self.torch_threads)
        elif self.torch_threads is not None:
            torch.set_num_threads(self.torch_threads)
        torch.manual_seed(self.seed)
        dtype = resolve_dtype(self.dtype, self.device)
        model, reference, base = self._load_models(checkpoint, folder)
        tokenizer = load_tokenizer(checkpoint or self.tokenizer, checkpoint or self.model)
        check_vocabulary(model, tokenizer)
        made = (self.objective(), self.seed, reference, self.build_critic(model), base)
        self._learner = Learner(model, pick_options(LearnerOptions, self), *made)
        self._tokenizer = tokenizer
        if self.server.type == "torch":
            # Weights that change while answers are made must be others than those that make them,
            # and to sample, float32 would be read and made narrow for each token again.
            is_narrow = self.lora is None and dtype == "bfloat16"
            served = model if self.lora is None else share_weights(model)
            if is_narrow or self.max_staleness:
                served = copy_trained(model, "bfloat16" if is_narrow else "float32")
                refresh(served, model, self.seed)
                self._sampling_copy = served
            server = self._server = InferenceServer(
                served,
                tokenizer,
                model_name=MODEL_NAME,
                max_model_tokens=self.server.max_model_tokens,
                max_batch_size=self.server.max_batch_size,
                seed=self.seed,
                dtype=None if is_narrow else dtype,
                deterministic=self.deterministic,
            )
            server.weights.version = self.weights_version
            self._random = server.sampler.random
        else:
            self._random = random.Random(self.seed)
            under = [] if self.lora is None else base_chain(self._place_of_start(folder))
            # An adapter on an adapter has no model of its own that a server could load.
            self._has_adapter_served = bool(len(under) == 1 and ENGINES[self.server.type].adapter)
            self._server = EngineServer(
                self.server.type,
                folder / "serving",
                folder / "logs" / f"{self.server.type}.log",
                self._write_served,
                self.server.arguments or (),
                self.server.timeout_seconds,
                {
                    "seed": self.seed + self.weights_version,
                    "dtype": self._dtype_of_engine,
                    "max_model_tokens": self.server.max_model_tokens,
                    "max_batch_size": self.server.max_batch_size,
                },
                shares_gpu=model.device.type != "cpu" and self.server.is_on(model.device),
                replicas=self.server.replicas,
                base=under[0] if self._has_adapter_served else None,
                lora_rank=self.lora.rank if self.lora else 0,
            )
        if checkpoint is not None:
            restore(checkpoint, self._learner, self._random)

    def _load_models(self, checkpoint: Path | None, folder: Path) -> tuple[Any, Any, str]:
        """The model to train, the frozen start (None: a copy), and what an adapter is built on."""
        from agl_torch.adapter import add_adapter, fingerprint, share_weights
        from agl_torch.checkpoint import save_model
        from agl_torch.memory import check_memory
        from agl_torch.models import load_model, resolve_dtype

        start = None
        if self._keeps_start and checkpoint is not None:
            start = self._find_start(folder, home_of(checkpoint))
        source = (checkpoint if self.lora is None else None) or start or self.model
        if self.memory.check and isinstance(source, str | Path):
            check_memory(self, source, self.device)
        if self.lora is None:
            first = model = load_model(source, self.device, "float32")
            if start is not None:
                first = load_model(start, self.device, "float32")
        else:
            dtype = resolve_dtype(self.dtype, self.device) if start is None else "auto"
            first = model = load_model(source, self.device, dtype)
        if self.memory.check and not isinstance(source, str | Path):
            check_memory(self, model, self.device)
        if self._keeps_start and not (folder / REFERENCE).exists():
            with making(folder / REFERENCE, {}) as partial:
                save_model(first, partial)
        if self.lora is None:
            return model, None if first is model else first, ""
        reference = share_weights(model) if self.kl.coefficient else None
        base = fingerprint(model, dtype="bfloat16")
        add_adapter(model, self.lora, self._place_of_start(folder), checkpoint)
        return model, reference, base

    def _find_start(self, *folders: Path) -> Path:
        """What the run began with, in one of these folders of runs."""
        for folder in folders:
            if (folder / REFERENCE).is_dir():
                return folder / REFERENCE
        needs, way = "kl compares with", "Set kl.coefficient to 0"
        if self.lora is not None:
            needs, way = "lora builds on", "Put it back"
        raise ConfigError(
            f"{self.title}: {needs} the model that the run began with, and neither "
            f"{' nor '.join(repr(str(folder)) for folder in folders)} has the folder "
            f"{REFERENCE!r}. {way}, or start anew"
        )

    def _place_of_start(self, folder: Path) -> str | Path:
        """Where the model under an adapter can be loaded."""
        place = self.model if isinstance(self.model, str | Path) else folder / REFERENCE
        return Path(place).absolute() if Path(place).exists() else place

    @property
    def _dtype_of_engine(self) -> str:
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def _keeps_start(self) -> bool:
        """Whether the run keeps what it began with: to compare with it, or to build on it."""
        if self.lora is None:
            return bool(self.kl.coefficient)
        return not isinstance(self.model, str | Path)

    def trained_model(self) -> TrainedModel:
        """The model that is served, with its vocabulary."""
        embeddings = self._learner.model.get_input_embeddings()
        return TrainedModel(
            name=MODEL_NAME,
            vocabulary_size=embeddings.weight.shape[0],
            unknown_token_id=unknown_token_id(self._tokenizer),
        )

    def sampling_seconds(self) -> float:
        server = self._server
        return 0.0 if isinstance(server, EngineServer) else server.weights.sampling_seconds

    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """The server of this run, whatever the version."""
        return self._server.serving()

    def update(self, rows: "list[Weighed]") -> "tuple[dict[str, float], list[Weighed]]":
        """Take gradient steps while nothing is sampled, or a copy of the weights before samples."""
        from agl_torch.adapter import refresh
        from agl_torch.learner import Sample

        if not rows:  # a subclass chose none
            return {}, []
        samples = [
            Sample(
                *(one.row, one.of_tokens, one.returns, one.values, one.left_out),
                is_current=not version_lag([one.row], self.weights_version),
            )
            for one in rows
        ]
        factor = self.schedule.factor(self.weights_version, self.steps)
        whole = self._learner.critic is not None  # which is taught by all
        with contextlib.ExitStack() as changing:
            if not self.max_staleness:
                changing.enter_context(self._server.updating())
            learned = self._learner.update(samples, factor)
            self._learner.release()
            pairs = zip(rows, samples, strict=True)
            used = [row for row, sample in pairs if whole or not sample.is_masked]
            if used and self.max_staleness:
                changing.enter_context(self._server.updating())
            if used and self._sampling_copy is not None:
                refresh(self._sampling_copy, self._learner.model, self.seed)
            if not used and not isinstance(self._server, EngineServer):
                self._server.weights.unchanged()
        return learned, used

    @property
    def depends_on_steps(self) -> bool:
        return self.schedule.type != "constant"

    @property
    def trains_whole_rows(self) -> bool:
        return bool(self.entropy_bonus or (self.penalises_loss and self.kl.coefficient))

    def foresee(self, rows: "list[TrainingRow]") -> "Foreseen | None":
        """What the rewards are taken with: penalties, where they are not in the loss."""
        return None if self.penalises_loss else Foreseen(penalties=self.penalties(rows))

    def penalties(self, rows: "list[TrainingRow]") -> list[list[float]] | None:
        """Per row and sampled token, what its divergence from the start costs; None without one."""
        from agl_torch.batch import logprob_differences

        if not self.kl.coefficient:
            return None
        learner = self._learner
        gaps = logprob_differences(learner.reference, rows, learner.options)
        return [[-learner.kl_coefficient * gap for gap in of_row] for of_row in gaps]

    def fingerprint(self) -> str | None:
        """The SHA-256 of the weights, where runs are to be equal bit for bit."""
        from agl_torch.adapter import fingerprint

        models = filter(None, (self._learner.model, self._learner.critic))
        return fingerprint(*models) if self.deterministic else None

    def save(self, folder: Path) -> None:
        """Write a folder that ``from_pretrained`` loads, and what is needed to go on training."""
        from agl_torch.checkpoint import save

        save(folder, self._learner, self._tokenizer, self._random)

    def _write_served(self, folder: Path) -> None:
        import torch

        from agl_torch.adapter import copy_on_cpu, merge
        from agl_torch.checkpoint import save_model

        torch.cuda.empty_cache()  # an engine on the same card needs what the update took
        model = self._learner.model  # of an adapter's model no second one is made on a GPU
        if self.lora is not None and not self._has_adapter_served:
            model = merge(copy_on_cpu(model))
        save_model(model, folder, None if self._has_adapter_served else self._dtype_of_engine)
        self._tokenizer.save_pretrained(folder)
