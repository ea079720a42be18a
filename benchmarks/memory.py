"""What `grpo` is estimated to need of a card in bfloat16, by model and method; for the docs.

    python benchmarks/memory.py

Shapes are those of Qwen2.5; nothing is downloaded, and no weights are made.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

import agl
from agl_learning.trainer.options import Lora
from agl_torch.memory import Size, estimate
from agl_torch.options import KL, Optimizer

SHAPES = {
    "0.5B": (151_936, 896, 4864, 24, 14, 2, True),
    "1.5B": (151_936, 1536, 8960, 28, 12, 2, True),
    "3B": (151_936, 2048, 11_008, 36, 16, 2, True),
    "7B": (152_064, 3584, 18_944, 28, 28, 4, False),
}
METHODS = {
    "all weights": {},
    "all weights, `kl`": {"kl": KL(coefficient=0.01)},
    "all weights, `optimizer: adamw_8bit`": {"optimizer": Optimizer(type="adamw_8bit")},
    "`lora: {rank: 16}`": {"lora": Lora(rank=16)},
}


def config_of(
    words: int, hidden: int, inner: int, layers: int, heads: int, groups: int, tied: bool
) -> Qwen2Config:
    """Of a model that has these sizes."""
    return Qwen2Config(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        tie_word_embeddings=tied,
        max_position_embeddings=32_768,
    )


def size(*shape: Any) -> Size:
    """Of a model of such a shape."""
    with torch.device("meta"):
        return Size.of(AutoModelForCausalLM.from_config(config_of(*shape)))


def gibibytes(algorithm: Any, of_model: Size, dtype: str = "bfloat16") -> float:
    """Of a card that a run is estimated to need."""
    parts = estimate(algorithm, of_model, dtype=dtype)
    update = parts["activations"] + parts["logits"]
    lasting = sum(parts.values()) - update - parts["sampling"]
    return (lasting + max(update, parts["sampling"])) / 2**30


def main() -> None:
    """Print the table."""
    print(f"| GiB | {' | '.join(SHAPES)} |\n|---|{'---|' * len(SHAPES)}")
    for method, options in METHODS.items():
        grpo = agl.GRPO(model="none")
        vars(grpo).update(options)  # what they need need not be installed
        cells = [f"{gibibytes(grpo, size(*shape)):.0f}" for shape in SHAPES.values()]
        print(f"| {method} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
