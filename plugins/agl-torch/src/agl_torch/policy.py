"""``PolicyTraining``: reinforcement learning of a language model on one machine.

Each step runs P tasks G times through the agent, makes advantages of the rewards, and takes
gradient steps on the tokens that the model sampled. What sets the algorithms apart is in a module
each: ``grpo``, ``rloo``, ``reinforce``, ``gspo``, ``cispo``, ``ppo`` and ``distillation``. What
they share of the mathematics is in ``loss`` and ``agl_learning.advantages.weighing``, the loop in
``agl_learning.trainer.online``, whose metrics it has; and of its own, see ``loss`` and ``learner``:
``loss/total``, ``loss/policy``, ``loss/value``, ``entropy``, ``kl``, ``kl_coefficient``,
``clip_fraction``, ``grad_norm``, ``gradient_steps``, ``learning_rate``, ``explained_variance``,
``logprob_gap``, ``masked_fraction``, ``sampling_weight``, ``loss_tokens``, and with a teacher
``kl/teacher``, see ``distillation``.
"""

import asyncio
import contextlib
import random
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from agl.errors import ConfigError
from agl_learning.advantages.estimates import Foreseen
from agl_learning.advantages.weighing import check_copies
from agl_learning.collect.prompt_checks import unknown_token_id
from agl_learning.collect.step_metrics import version_lag
from agl_learning.run.checkpoint import home_of, making
from agl_learning.run.start import name_of
from agl_learning.trainer.online import OnlineTraining
from agl_models.processes.engines import ENGINES, EngineServer, check_server
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.options import AboveZero, Count, check_place, pick_options
from agl_records.training_data import TrainedModel
from agl_torch.garbage import without_collections
from agl_torch.option_names import OptionNames, take_other_names
from agl_torch.options import ClipOptions, LearnerOptions, check_learner
from agl_torch.schedule import learning_factor

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.weighing import Weighed
    from agl_learning.run.start import Origin
    from agl_records.training_data import TrainingRow
    from agl_torch.critic import Critic
    from agl_torch.learner import Objective
    from agl_torch.loss import Gain, Tokens
    from agl_torch.server import InferenceServer

REFERENCE = "reference"
"""The folder, in that of the run, of the model that the run began with."""


@dataclass(kw_only=True, eq=False, repr=False)
class PolicyTraining(OptionNames, OnlineTraining, LearnerOptions):
    """What the algorithms of this package share.

    The model is served on an OpenAI-compatible address by this process and trained in place; the
    agent reaches it through the gateway as the resource ``resource_name``. Use it with a dataset
    of tasks and an agent that returns (or emits) a reward.

    Args:
        model: A folder or Hugging Face name, a ``transformers`` model, or a function that builds
            one. With the strategy ``cs`` give a function rather than a model: runners are forked
            before it is called.
        tokenizer: Likewise, with a chat template; None takes it from where the model comes.
        max_model_tokens: Of prompt and answer together; None takes the model's limit.
        seed: Of tasks' order, minibatches and sampling. Runs with one seed have the same tasks and
            draws, and are equal up to rounding.
        deterministic: Runs with one seed are equal bit for bit; see
            docs/explanation/reproducibility.md.
        device: For example ``cuda:0``; None takes a GPU if there is one.
        torch_threads: Threads of one torch operation; None leaves it to torch, and takes 1 with
            ``deterministic``. For a tiny model 1 is fastest.
        max_batch_size: Answers sampled at once.
        check_memory: Refuse a run that, by an estimate, does not fit.
        server: What samples: ``torch``, the server of this process, or ``vllm`` or ``sglang`` as a
            process of its own, with the weights anew after each update; see ``engines``.
        server_arguments: Further ones for the command of such a server, as
            ``["--gpu-memory-utilization", "0.4"]``.
        server_timeout_seconds: Until it must be ready.
    """

    safe_options = frozenset({"check_memory"})
    models: ClassVar[tuple[str, ...]] = ("model",)
    """Options that are models, each perhaps a path."""
    penalises_loss: ClassVar[bool] = True
    """Whether ``kl_coefficient`` is in the loss; else it is in the rewards."""
    why_unused = ("rejected", "the trainer finds its row far likelier than its sampler did")

    model: Any = field(kw_only=False)
    tokenizer: Any = field(default=None, kw_only=False)
    temperature: AboveZero = 1.0
    max_model_tokens: Annotated[int, Ge(2)] | None = None
    device: str | None = None
    torch_threads: Count | None = None
    max_batch_size: Count = 64
    check_memory: bool = True
    server: Literal["torch", "vllm", "sglang"] = "torch"
    server_arguments: list[str] | None = None
    server_timeout_seconds: AboveZero = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.max_staleness
            and self.sampling_correction == "none"
            and getattr(self, "ratio_cap", 1.0) is None
        ):
            raise ConfigError(
                f"{self.title}: ratio_cap is None, and with max_staleness tokens are learned that "
                "older weights sampled: their importance weights need a bound. Give one, as 3"
            )
        take_other_names(self)
        check_copies(self.title, self, group_size=self.group_size)
        check_learner(self.title, self)
        check_server(self.title, self)
        self._sampling_copy: Any = None
        self._has_adapter_served = False
        places = (*self.models, "tokenizer")
        check_place(self.title, **{name: getattr(self, name) for name in places})

    @abstractmethod
    def gain(self, tokens: "Tokens") -> "Gain":
        """What is made as large as it can, of each token."""

    def objective(self) -> "Objective":
        """How its gradients differ from those of others."""
        from agl_torch.learner import Objective

        mean, constant = getattr(self, "loss_type", "grpo"), getattr(self, "loss_constant", None)
        return Objective(self.gain, mean, constant, self.penalises_loss)

    def build_critic(self, model: Any) -> "Critic | None":
        """What expects rewards, beside the model that is trained; none, unless one is needed."""
        return None

    def identity(self) -> dict[str, Any]:
        """With models that have a name; of a folder its last part, as both may move."""
        identity = super().identity()
        for name in self.models:
            identity |= name_of(name, getattr(self, name))
        return identity

    def check_start(self, origin: "Origin") -> None:
        """Refuse to go on where the start, which is compared with or built on, is nowhere."""
        if self._keeps_start and origin.checkpoint is not None:
            self._find_reference(origin.folder, origin.home)

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
            from agl_torch.models import use_deterministic_algorithms

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
        if self.server == "torch":
            # Weights that change while answers are made must be others than those that make them,
            # and to sample, float32 would be read and made narrow for each token again.
            is_narrow = self.lora_rank is None and dtype == "bfloat16"
            served = model if self.lora_rank is None else share_weights(model)
            if is_narrow or self.max_staleness:
                served = copy_trained(model, "bfloat16" if is_narrow else "float32")
                refresh(served, model, self.seed)
                self._sampling_copy = served
            server = self._server = InferenceServer(
                served,
                tokenizer,
                model_name=MODEL_NAME,
                max_model_tokens=self.max_model_tokens,
                max_batch_size=self.max_batch_size,
                seed=self.seed,
                dtype=None if is_narrow else dtype,
                deterministic=self.deterministic,
            )
            server.weights.version = self.weights_version
            self._random = server.sampler.random
        else:
            self._random = random.Random(self.seed)
            under = [] if self.lora_rank is None else base_chain(self._place_of_start(folder))
            # An adapter on an adapter has no model of its own that a server could load.
            self._has_adapter_served = bool(len(under) == 1 and ENGINES[self.server].adapter)
            self._server = EngineServer(
                self.server,
                folder / "serving",
                folder / "logs" / f"{self.server}.log",
                self._write_served,
                self.server_arguments or (),
                self.server_timeout_seconds,
                {
                    "seed": self.seed + self.weights_version,
                    "dtype": self._dtype_of_engine,
                    "max_model_tokens": self.max_model_tokens,
                    "max_batch_size": self.max_batch_size,
                },
                shares_gpu=model.device.type != "cpu" and not model.device.index,
                base=under[0] if self._has_adapter_served else None,
                lora_rank=self.lora_rank or 0,
            )
        if checkpoint is not None:
            restore(checkpoint, self._learner, self._random)

    def _load_models(self, checkpoint: Path | None, folder: Path) -> tuple[Any, Any, str]:
        """The model to train, the frozen start (None: a copy), and what an adapter is built on."""
        from agl_torch.adapter import add_adapter, share_weights
        from agl_torch.checkpoint import save_model
        from agl_torch.fingerprint import fingerprint
        from agl_torch.memory import check_memory
        from agl_torch.models import load_model, resolve_dtype

        start = None
        if self._keeps_start and checkpoint is not None:
            start = self._find_reference(folder, home_of(checkpoint))
        source = (checkpoint if self.lora_rank is None else None) or start or self.model
        if self.check_memory and isinstance(source, str | Path):
            check_memory(self, source, self.device)
        if self.lora_rank is None:
            first = model = load_model(source, self.device, "float32")
            if start is not None:
                first = load_model(start, self.device, "float32")
        else:
            dtype = resolve_dtype(self.dtype, self.device) if start is None else "auto"
            first = model = load_model(source, self.device, dtype)
        if self.check_memory and not isinstance(source, str | Path):
            check_memory(self, model, self.device)
        if self._keeps_start and not (folder / REFERENCE).exists():
            with making(folder / REFERENCE, {}) as partial:
                save_model(first, partial)
        if self.lora_rank is None:
            return model, None if first is model else first, ""
        reference = share_weights(model) if self.kl_coefficient else None
        base = fingerprint(model, dtype="bfloat16")
        add_adapter(model, self, self._place_of_start(folder), checkpoint)
        return model, reference, base

    def _place_of_start(self, folder: Path) -> str | Path:
        """Where the model under an adapter can be loaded."""
        place = self.model if self._is_named else folder / REFERENCE
        return Path(place).absolute() if Path(place).exists() else place

    @property
    def _dtype_of_engine(self) -> str:
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def _is_named(self) -> bool:
        return isinstance(self.model, str | Path)

    @property
    def _keeps_start(self) -> bool:
        """Whether the run keeps what it began with: to compare with it, or to build on it."""
        if self.lora_rank is None:
            return bool(self.kl_coefficient)
        return not self._is_named

    def trained_model(self) -> TrainedModel:
        """The model that is served, with its vocabulary."""
        embeddings = self._learner.model.get_input_embeddings()
        return TrainedModel(
            name=MODEL_NAME,
            vocabulary_size=embeddings.weight.shape[0],
            unknown_token_id=unknown_token_id(self._tokenizer),
        )

    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """The server of this run, whatever the version."""
        server = self._server
        return server.serving() if isinstance(server, EngineServer) else _answering(server)

    def update(self, rows: "list[Weighed]") -> "tuple[dict[str, float], list[Weighed]]":
        """Take gradient steps while nothing is sampled, or a copy of the weights before samples."""
        from agl_torch.adapter import refresh
        from agl_torch.learner import Sample

        samples = [
            Sample(
                *(one.row, one.of_tokens, one.returns, one.values, one.left_out),
                is_current=version_lag([one.row], self.weights_version) == 0,
            )
            for one in rows
        ]
        when = (self.weights_version, self.steps)
        factor = learning_factor(self.schedule, self.warmup_steps, *when)
        with contextlib.ExitStack() as changing:
            if not self.max_staleness:
                changing.enter_context(self._server.updating())
            learned = self._learner.update(samples, factor)
            self._learner.release()
            if self.max_staleness:
                changing.enter_context(self._server.updating())
            if self._sampling_copy is not None:
                refresh(self._sampling_copy, self._learner.model, self.seed)
        whole = self._learner.critic is not None  # which is taught by all
        pairs = zip(rows, samples, strict=True)
        return learned, [row for row, sample in pairs if whole or not sample.is_masked]

    def foresee(self, rows: "list[TrainingRow]") -> "Foreseen | None":
        """What the rewards are taken with: penalties, where they are not in the loss."""
        return None if self.penalises_loss else Foreseen(penalties=self.penalties(rows))

    def penalties(self, rows: "list[TrainingRow]") -> list[list[float]] | None:
        """Per row and sampled token, what its divergence from the start costs; None without one."""
        from agl_torch.batch import logprob_differences

        if not self.kl_coefficient:
            return None
        learner = self._learner
        gaps = logprob_differences(learner.reference, rows, learner.options)
        return [[-learner.kl_coefficient * gap for gap in of_row] for of_row in gaps]

    def fingerprint(self) -> str | None:
        """The SHA-256 of the weights, where runs are to be equal bit for bit."""
        from agl_torch.fingerprint import fingerprint

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
        dtype = None if self._has_adapter_served else self._dtype_of_engine
        if dtype is not None and self.lora_rank is not None:
            model = merge(copy_on_cpu(model))
        save_model(model, folder, dtype)
        self._tokenizer.save_pretrained(folder)

    def _find_reference(self, *folders: Path) -> Path:
        """Where the start of the run is.

        Raises:
            ConfigError: It is not there.
        """
        for folder in folders:
            if (folder / REFERENCE).is_dir():
                return folder / REFERENCE
        needs, way = "lora_rank builds on", "Put it back"
        if self.lora_rank is None:
            needs, way = "kl_coefficient compares with", "Set kl_coefficient to 0"
        raise ConfigError(
            f"{self.title}: {needs} the model that the run began with, and neither "
            f"{' nor '.join(repr(str(folder)) for folder in folders)} has the folder "
            f"{REFERENCE!r}. {way}, or start anew"
        )


@contextlib.asynccontextmanager
async def _answering(server: "InferenceServer") -> AsyncGenerator[Served]:
    server.start()
    try:
        yield Served({"model": f"hosted_vllm/{MODEL_NAME}", "api_base": server.url})
    finally:
        await asyncio.to_thread(server.stop)


@dataclass(kw_only=True, eq=False, repr=False)
class ClippedTraining(PolicyTraining, ClipOptions):
    """Those whose ratios have bounds on both sides; by default those of tokens."""

    def gain(self, tokens: "Tokens") -> "Gain":
        """The clipped surrogate of each token."""
        return self.clipped(tokens.log_ratio_N, tokens.advantages_N)

    def clipped(self, log_ratio_N: "Tensor", advantages_N: "Tensor") -> "Gain":
        """The clipped surrogate of ratios, with the bounds that are options."""
        from agl_torch.loss import clipped

        return clipped(log_ratio_N, advantages_N, self.clip_low, self.clip_high, self.ratio_cap)
