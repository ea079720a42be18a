"""Checkpoints: a folder that ``from_pretrained`` loads, with what is needed to go on training."""

import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from agl.errors import ConfigError

if TYPE_CHECKING:
    from agl_torch.learner import Learner

STATE = "grpo_state.json"
OPTIMIZER = "grpo_optimizer.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run is; JSON values only."""

    step: int
    version: int
    """Of the weights."""
    totals: dict[str, Any]
    """What the summary adds up."""
    tasks: dict[str, Any]
    """State of the order of tasks."""


def save_checkpoint(
    folder: Path,
    learner: "Learner",
    tokenizer: Any,
    progress: Progress,
    sampler_random: random.Random,
) -> Path:
    """Write weights, tokenizer, optimiser, random states and progress; whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(learner.model, partial)
    tokenizer.save_pretrained(partial)
    state = learner.optimizer.state_dict()
    tensors = {
        f"{index}/{name}": value.detach().cpu().contiguous()
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    tensors["random/torch"] = torch.get_rng_state()
    save_file(tensors, partial / OPTIMIZER)
    record = {
        "step": progress.step,
        "version": progress.version,
        "totals": progress.totals,
        "tasks": progress.tasks,
        "learner_random": learner.random.getstate(),
        "sampler_random": sampler_random.getstate(),
    }
    (partial / STATE).write_text(json.dumps(record))
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


def save_model(model: Any, folder: Path) -> None:
    """Write the weights as safetensors, without the progress bar that transformers draws."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that ``path`` is, or the newest one in a run's folder.

    Raises:
        ConfigError: There is none.
    """
    root = Path(path)
    found = [root, *sorted((root / "checkpoints").glob("step-*"), reverse=True)]
    for folder in found:
        if (folder / STATE).is_file():
            return folder
    raise ConfigError(
        f"GRPO: no checkpoint to resume from in {str(root)!r}; expected a folder with {STATE}, "
        "or a run's folder with checkpoints/step-*"
    )


def restore(folder: Path, learner: "Learner", sampler_random: random.Random) -> Progress:
    """Put optimiser and random states back; the weights are loaded by the caller.

    Raises:
        ConfigError: The checkpoint is of another model.
    """
    record = json.loads((folder / STATE).read_text())
    tensors = load_file(folder / OPTIMIZER)
    torch.set_rng_state(tensors.pop("random/torch"))
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    present = learner.optimizer.state_dict()
    num_parameters = sum(len(group["params"]) for group in present["param_groups"])
    if state and len(state) != num_parameters:
        raise ConfigError(
            f"GRPO: the checkpoint {str(folder)!r} has optimiser state for {len(state)} "
            f"parameters, the model has {num_parameters}"
        )
    learner.optimizer.load_state_dict({"state": state, "param_groups": present["param_groups"]})
    learner.random.setstate(_random_state(record["learner_random"]))
    sampler_random.setstate(_random_state(record["sampler_random"]))
    return Progress(record["step"], record["version"], record["totals"], record["tasks"])


def _random_state(state: list[Any]) -> tuple[Any, ...]:
    version, internal, gauss = state
    return version, tuple(internal), gauss
