"""How gradients are made: options of algorithms, in groups."""

import logging
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from agl.errors import ConfigError, install_line
from agl_learning.trainer.options import Lora
from agl_runs.options import AboveZero, Count, Group, NotNegative, check_options

logger = logging.getLogger("agl.torch")
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Optimizer(Group):
    """The optimiser of the weights.

    Args:
        type: ``adamw``, whose states take 8 bytes per weight, or ``adamw_8bit``: torchao's, whose
            states take 2 (arXiv:2110.02861). Needs ``agl-torch[8bit]``.
        beta1: How much of the mean gradient it keeps from one gradient step to the next.
        beta2: Likewise of the mean squared gradient.
        weight_decay: Weight decay of matrices; norms and biases do not decay.
        max_grad_norm: Longer gradients are shortened.
    """

    type: Literal["adamw", "adamw_8bit"] = "adamw"
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    weight_decay: NotNegative = 0.0
    max_grad_norm: AboveZero = 1.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Schedule(Group):
    """The learning rate over time.

    Args:
        type: The learning rate after the warm-up, until the last of ``steps``: it
            stays, or falls to 0 in a line or half a wave.
        warmup_steps: The learning rate rises in a line over so many updates.
    """

    type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Ge(0)] = 0

    def factor(self, done: int, steps: int) -> float:
        """What the learning rate of the next update is multiplied by.

        Args:
            steps: Of the run; those that train nothing are no updates, so that the end may not be
                reached.

        Example:
            Two steps of warm-up and ``linear`` over 6 steps give 1/2, 1, 1, 3/4, 1/2, 1/4.
        """
        if done < self.warmup_steps:
            return (done + 1) / self.warmup_steps
        left = max(0.0, 1.0 - (done - self.warmup_steps) / (steps - self.warmup_steps))
        if self.type == "linear":
            return left
        return 1.0 if self.type == "constant" else (1.0 - math.cos(math.pi * left)) / 2


@dataclass(frozen=True, kw_only=True, repr=False)
class KL(Group):
    """The penalty on the divergence from the start.

    Args:
        coefficient: How much the penalty counts; 0 keeps no copy of the start.
        target: Nats per token; after each update the coefficient grows or shrinks, by at most 2 %,
            to bring the divergence there (arXiv:1909.08593). None keeps it as it is.
    """

    coefficient: NotNegative = 0.0
    target: AboveZero | None = None

    def problem(self) -> str | None:
        if self.target is None or self.coefficient:
            return None
        return (
            "target changes kl.coefficient, and that is 0. Give kl.coefficient, from which it "
            "begins"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingCorrection(Group):
    """What an update makes of tokens that the trainer finds likelier than their sampler did.

    Args:
        type: The trainer computes the log-probabilities of sampled tokens before the update, and d
            is how much larger they are than those the sampler recorded. With ``sequence_mask`` a
            row counts e^(sum of d) times, and not at all above the cap. With ``token_truncate`` a
            token counts e^d times, at most as often as the cap says; tokens that older weights
            sampled (``max_staleness``) count so with either value (arXiv:2505.24298). ``none``
            changes no weight, and compares the update with the recorded log-probabilities instead
            of the trainer's own.
        cap: How often a row, or a token, counts at most.
    """

    type: Literal["sequence_mask", "token_truncate", "none"] = "sequence_mask"
    cap: Annotated[float, Ge(1)] = 3.0

    def problem(self) -> str | None:
        if self.type != "none" or self.cap == type(self).cap:
            return None
        return "cap is of a correction, and sampling_correction.type is 'none'. Leave one out"


@dataclass(frozen=True, kw_only=True, repr=False)
class Loss(Group):
    """What the tokens of a step weigh in the loss.

    Args:
        type: ``dapo``: all tokens weigh the same. ``grpo``: rollouts weigh the same, tokens of one
            equally. ``dr_grpo``: the tokens of a rollout are summed up and divided by ``constant``.
        constant: Tokens, for the last of these; as a rule ``max_tokens``.
    """

    type: Literal["dapo", "grpo", "dr_grpo"] = "dapo"
    constant: Count | None = None

    def problem(self) -> str | None:
        if (self.type == "dr_grpo") == (self.constant is not None):
            return None
        return (
            f"constant goes with loss.type 'dr_grpo', and only with it; got type {self.type!r} and "
            f"constant {self.constant!r}"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Clip(Group):
    """How far a ratio of probabilities counts.

    Args:
        low: Ratios of probabilities, to those before an update, count down to ``1 - low``. With
            one gradient step an update, they are 1.
        high: Ratios count up to ``1 + high``.
        ratio_cap: Ratios of tokens with negative advantage, which neither of the two holds, count
            up to this (truncated importance weights, arXiv:1802.01561); with None only a
            ratio above e^20 is cut, to e^20, so that it stays a number.
    """

    low: Annotated[float, Ge(0), Lt(1)] = 0.2
    high: NotNegative = 0.28
    ratio_cap: Annotated[float, Ge(1)] | None = 3.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Server(Group):
    """The server that samples.

    Args:
        type: ``torch``, the server of this process, or ``vllm`` or ``sglang`` as a process of its
            own, with the weights anew after each update.
        arguments: Further ones for the command of a server of its own, as
            ``["--gpu-memory-utilization", "0.4"]``.
        timeout_seconds: Until a server of its own must be ready.
        replicas: Number of processes, of vLLM or SGLang; where there are GPUs, each on one of its
            own, from the first on. One that dies is started anew while the others serve.
        max_batch_size: Answers sampled at once.
        max_model_tokens: Limit of prompt and answer together; None takes the model's.
    """

    type: Literal["torch", "vllm", "sglang"] = "torch"
    arguments: list[str] | None = None
    timeout_seconds: AboveZero = 600.0
    replicas: Count = 1
    max_batch_size: Count = 64
    max_model_tokens: Annotated[int, Ge(2)] | None = None

    def problem(self) -> str | None:
        for name in ("arguments", "timeout_seconds", "replicas") if self.type == "torch" else ():
            if getattr(self, name) != getattr(type(self), name):
                return (
                    f"{name} is for a server of its own, vllm or sglang; server is 'torch', the "
                    "one in this process"
                )
        return None

    def is_on(self, device: Any) -> bool:
        """Whether a server of its own takes this GPU; they take the first ones."""
        return (device.index or 0) < self.replicas


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory(Group):
    """Options that save memory.

    Args:
        microbatch_tokens: Tokens, padding included, per forward pass; gradients add up. What rows
            begin with alike counts once. ``auto`` is 2048 on a GPU; on a CPU, where more is no
            faster, 512, or up to 2048 in a line whose rows share a long prompt. None takes
            everything at once.
        gradient_checkpointing: Keep only the input of each layer, and compute the rest
            again where gradients need it: a third more time, and much less memory.
        check: Refuse a run that, by an estimate, does not fit.
    """

    microbatch_tokens: Count | Literal["auto"] | None = "auto"
    gradient_checkpointing: bool = False
    check: bool = True


@dataclass(kw_only=True, eq=False, repr=False)
class LearnerOptions:
    """What ``Learner`` is told; see ``PolicyTraining``, which is told the same."""

    epochs: Count = 1
    minibatch_rows: Count | None = None
    memory: Memory = Memory()
    learning_rate: NotNegative = 1e-6
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    entropy_bonus: NotNegative = 0.0
    kl: KL = KL()
    temperature: AboveZero = 1.0
    sampling_correction: SamplingCorrection = SamplingCorrection()
    dtype: Dtype = "auto"
    lora: Lora | None = None

    def __post_init__(self) -> None:
        check_options("LearnerOptions", self)


def need(who: str, package: str, extra: str) -> None:
    """Refuse to go on without a package."""
    if find_spec(package) is None:
        line = install_line(f"agl-torch[{extra}]")
        raise ConfigError(f"{who} needs {package!r}, which is not installed. Run: {line}")


def check_learner(owner: str, options: Any) -> None:
    """Refuse options that would do nothing beside the others, or need what is not installed.

    So is a run in which nothing bounds the weights of tokens that older weights sampled; of a clip
    that holds nothing there is a warning.
    """
    if options.schedule.warmup_steps >= options.steps and options.schedule.warmup_steps > 0:
        raise ConfigError(
            f"{owner}: schedule.warmup_steps is {options.schedule.warmup_steps}, and the run has "
            f"{options.steps} steps; the learning rate would not be reached. Give fewer"
        )
    if options.lora is not None:
        need(f"{owner}: lora", "peft", "lora")
    if options.optimizer.type == "adamw_8bit":
        need(f"{owner}: optimizer 'adamw_8bit'", "torchao", "8bit")
    has_none = options.sampling_correction.type == "none"
    if options.max_staleness and has_none and options.clip.ratio_cap is None:
        raise ConfigError(
            f"{options.title}: clip.ratio_cap is None, and with max_staleness tokens are learned "
            "that older weights sampled: their importance weights need a bound. Give one, as 3"
        )
    is_first = options.epochs == 1 and options.minibatch_rows is None
    if options.clip != type(options).clip and is_first and not has_none:
        logger.warning(
            "%s: clip bounds how far the steps of an update go from where it began. With epochs=1 "
            "and no minibatch_rows it has one, which begins there: only answers held to a form "
            "are bounded",
            options.title,
        )
