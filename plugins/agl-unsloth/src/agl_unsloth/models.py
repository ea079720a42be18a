"""What can be said of a model without loading it: is it whole, how large is it, will it fit.

How much memory a training will need, by a rule of thumb, before hours are spent on rollouts:

    weights      4 bytes each where they are trained (16 bits: 2, 4 bits: 0.6, where an adapter is)
    gradients    4 bytes per trained weight
    AdamW        8 bytes per trained weight
    activations  rows x tokens x layers x hidden x 34 bytes (arXiv:2205.05198, without attention
                 scores, in 16 bits; twice that in 32); a tenth with gradient checkpointing (GPU)
    logits       rows x tokens x vocabulary x 4 bytes, three times: logits, softmax, gradient

It is an estimate, not a bound: what it says can be wrong by a factor of two.
"""

import json
import shutil
import struct
import subprocess
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_models.free_memory import free_memory
from agl_unsloth.options import TrainingOptions

GIB = 2**30
TOKENS = 2048
"""Taken for the longest row where there is no max_length."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class Size:
    """Of a causal model."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be served and trained.

    Raises:
        ConfigError: No such folder, or no configuration, weights, tokenizer or chat template in it.
    """
    where = f"model {str(folder)!r}"
    if not folder.is_dir():
        raise ConfigError(f"{where}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{where}: there is no config.json; expected a folder of transformers")
    if not _weight_files(folder) and not list(folder.glob("*.bin")):
        raise ConfigError(f"{where}: there are no weights (*.safetensors or *.bin)")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ConfigError(
            f"{where}: there is no tokenizer ({', '.join(TOKENIZERS[:3])}). Save it there: "
            "tokenizer.save_pretrained(folder)"
        )
    settings = _read_json(folder / "tokenizer_config.json")
    has_template = any((folder / name).is_file() for name in TEMPLATES)
    if not has_template and not settings.get("chat_template"):
        raise ConfigError(
            f"{where}: its tokenizer has no chat template, so no chat can be served. Take a model "
            "that was made for chat, or set tokenizer.chat_template and save it there"
        )


def size_of(folder: Path) -> Size | None:
    """How large the model in a folder is; None where that cannot be read."""
    parameters = sum(map(_count, _weight_files(folder)))
    config = _read_json(folder / "config.json")
    config = {**config, **config.get("text_config", {})}
    try:
        layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
        vocabulary = int(config["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return None
    return Size(parameters, layers, hidden, vocabulary) if parameters else None


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _count(path: Path) -> int:
    """Numbers in a safetensors file, from its header: 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


@dataclass(frozen=True)
class Machine:
    """Where the training runs."""

    what: str
    bytes: int
    is_gpu: bool


def estimate(
    size: Size, options: TrainingOptions, *, is_gpu: bool, pairs: bool
) -> dict[str, float]:
    """Bytes per part; see the module.

    Args:
        pairs: Whether an example is two rows (DPO).
    """
    rows = options.batch_size * (2 if pairs else 1)
    tokens = rows * (options.max_length or TOKENS)
    if options.lora_rank:
        per_weight = 0.6 if options.load_in_4bit else 2.0 if is_gpu else 4.0
        # Seven matrices of a layer get two slim ones each.
        trained = 14.0 * size.layers * size.hidden * options.lora_rank
    else:
        per_weight, trained = 4.0, float(size.parameters)
    activations = tokens * size.layers * size.hidden * (3.4 if is_gpu else 68.0)
    # Full DPO keeps the weights that it began with beside those that it trains.
    copies = 2 if pairs and not options.lora_rank else 1
    return {
        "weights": copies * per_weight * size.parameters,
        "gradients": 4.0 * trained,
        "optimiser": 8.0 * trained,
        "activations": activations,
        "logits": 12.0 * tokens * size.vocabulary,
    }


def check_memory(size: Size, options: TrainingOptions, machine: Machine, *, pairs: bool) -> None:
    """Refuse a training that will hardly fit."""
    parts = estimate(size, options, is_gpu=machine.is_gpu, pairs=pairs)
    needed = sum(parts.values())
    if needed <= machine.bytes:
        return
    listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
    raise ConfigError(
        f"training {size.parameters:,} parameters needs about {needed / GIB:.2f} GiB ({listed}); "
        f"{machine.what} has {machine.bytes / GIB:.2f} GiB. Lower batch_size or max_length, train "
        "an adapter (lora, load_in_4bit), or say check_memory=False if you know better"
    )


def find_machine() -> Machine:
    """The first GPU with its whole memory, or what is free of this machine's."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        asked = subprocess.run(
            [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=False,
        )
        first = asked.stdout.split()[:1]
        if asked.returncode == 0 and first and first[0].isdecimal():
            return Machine("the GPU", int(first[0]) * 2**20, True)
    return Machine("this machine", free_memory(), False)
