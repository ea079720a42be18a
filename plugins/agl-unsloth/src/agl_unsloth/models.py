"""What can be said of a model's folder without loading it: is it whole, how large is it."""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from agl.errors import ConfigError

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
