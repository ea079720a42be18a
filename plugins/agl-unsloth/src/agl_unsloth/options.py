"""What a training process is told, as JSON: the only thing that it and the run share."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["sft", "dpo"]
Engine = Literal["trl", "unsloth"]
TRAINER_FOLDER = "trainer"
"""In ``Order.out`` while it trains: what the library writes."""
STATE = "state"
"""In a version's folder: what the next training goes on with, in 32 bits."""


@dataclass(frozen=True)
class TrainingOptions:
    """Of one training; those of a version are in its model card.

    Plain types, since nothing of ``agl`` is imported where it trains; ``LocalFineTuning`` has the
    limits.
    """

    learning_rate: float
    epochs: float
    batch_size: int
    gradient_accumulation: int
    lora_rank: int
    """0 trains all weights."""
    lora_alpha: int
    """A float as well, whatever peft says."""
    lora_targets: list[str] | None
    """Names of modules; None takes all linear layers but the head."""
    load_in_4bit: bool
    max_length: int | None
    """Longest example, in tokens; none is cut."""
    weights: str
    """Type of the weights that are saved: bfloat16 or float16."""
    seed: int
    torch_threads: int | None
    deterministic: bool
    """Equal examples make equal weights, bit for bit."""
    beta: float = 0.1
    """Of DPO."""


@dataclass(frozen=True)
class Order:
    """One training."""

    method: Method
    engine: Engine
    model: str
    """Folder or name of the model, or of what its adapter is added to."""
    examples: str
    """JSON lines."""
    out: str
    """Folder for the weights and the tokenizer."""
    options: TrainingOptions
    state: str | None = None
    """``STATE`` of the version to go on from; None begins anew, from the weights of ``model``."""
    schedule: tuple[float, float] = (1.0, 0.0)
    """Parts of the learning rate at the beginning and at the end."""
